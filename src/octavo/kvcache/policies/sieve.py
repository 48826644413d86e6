"""SIEVE: one queue in order of arrival, and a hand that spares once whatever was used since it last passed.

Zhang et al., "SIEVE is simpler than LRU", NSDI 2024. Added here: the hand passes blocks that are held or continued.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from octavo.kvcache.block import KVCacheBlock
from octavo.kvcache.eviction import Turn


class SievePolicy:
    """A new block is not trusted: it must be used before the hand comes. ``evict`` is O(blocks) at worst.

    ::

        oldest ── passed by the hand ──┐     ┌── ahead of the hand ── newest
                  (order kept)         └hand─┘
    """

    learns = False

    def __init__(self) -> None:
        self._ahead: OrderedDict[KVCacheBlock, None] = OrderedDict()
        self._passed: OrderedDict[KVCacheBlock, None] = OrderedDict()
        self._visited: dict[KVCacheBlock, bool] = {}  # all blocks of both, held ones included
        self._idle: dict[KVCacheBlock, None] = {}

    def begin(self, request_id: str, chain: Sequence[int], now_s: float) -> None:
        """Nothing to learn."""

    def end(self, request_id: str, blocks: Sequence[KVCacheBlock], turn: Turn, now_s: float) -> None:
        """Nothing to learn."""

    def add(self, block: KVCacheBlock) -> None:
        """A new block is the newest; one that was here before stays in its place."""
        self._idle[block] = None
        if block not in self._visited:
            self._visited[block] = False
            self._ahead[block] = None

    def remove(self, block: KVCacheBlock) -> None:
        """The block is used again."""
        del self._idle[block]
        self._visited[block] = True

    def drop(self, block: KVCacheBlock) -> None:
        """Forget it."""
        del self._idle[block], self._visited[block]
        self._ahead.pop(block, None)
        self._passed.pop(block, None)

    def evict(self, num_blocks: int) -> list[KVCacheBlock]:
        """Move the hand to a leaf that was not used since the hand last passed it."""
        while True:
            if not self._ahead:
                self._ahead, self._passed = self._passed, self._ahead
            block, _ = self._ahead.popitem(last=False)
            if block in self._idle:
                if not self._visited[block] and not block.children:
                    del self._idle[block], self._visited[block]
                    return [block]
                self._visited[block] = False
            self._passed[block] = None

    def clear(self) -> None:
        """Forget all."""
        for blocks in (self._ahead, self._passed, self._visited, self._idle):
            blocks.clear()

    def __len__(self) -> int:
        return len(self._idle)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return iter(self._idle)
