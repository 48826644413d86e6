"""What the block pool asks of an eviction policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.kvcache.block import KVCacheBlock


@dataclass(frozen=True, slots=True)
class Turn:
    """What the engine knows of a request that gives its blocks back.

    Attributes:
        num_output_tokens: tokens generated so far.
        ending: why: a finish reason, ``"tool_calls"``, ``"preempted"``; ``None`` where nobody knows. One of a few
            fixed words, for a policy may remember each.
    """

    num_output_tokens: int = 0
    ending: str | None = None


class EvictionPolicy(Protocol):
    """Keeps the cached blocks that nobody holds, and chooses among those without cached children.

    The pool calls ``add`` for the blocks of a request from its last to its first, so children come before parents; it
    calls ``remove`` for a parent before its child. So a held block never continues one that is not held.
    """

    learns: bool
    """Whether to call ``begin`` and ``end``: once for each time that a request runs, never per step."""

    def begin(self, request_id: str, chain: Sequence[int], now_s: float) -> None:
        """A request is about to be given its blocks. ``chain``: prefix hashes of its full blocks, cached or not."""

    def end(self, request_id: str, blocks: Sequence[KVCacheBlock], turn: Turn, now_s: float) -> None:
        """A request is about to give its blocks back. ``blocks``: those in the prefix cache, from the first token on.

        A fork ends without having begun.
        """

    def add(self, block: KVCacheBlock) -> None:
        """Nobody holds the block any more."""

    def remove(self, block: KVCacheBlock) -> None:
        """Somebody holds the block again."""

    def drop(self, block: KVCacheBlock) -> None:
        """The block, which has no children, leaves the cache although it was not chosen."""

    def evict(self, num_blocks: int) -> list[KVCacheBlock]:
        """Choose blocks and forget them: at least one, at best ``num_blocks``; called only when there are so many.

        Each has no children but those before it in the list. More may go with them.
        """

    def clear(self) -> None:
        """Forget all blocks."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[KVCacheBlock]: ...
