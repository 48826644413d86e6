"""Which cached block to give up when a blank one is needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from octavo.kvcache.block import KVCacheBlock


class EvictionPolicy(Protocol):
    """Keeps the cached blocks that nobody holds. A block may be evicted only when it has no cached children.

    The pool calls ``add`` for the blocks of a request from its last to its first, so children come before parents.
    """

    def add(self, block: KVCacheBlock) -> None:
        """Nobody holds the block any more."""

    def remove(self, block: KVCacheBlock) -> None:
        """Somebody holds the block again."""

    def evict(self) -> KVCacheBlock:
        """Choose a block without children and forget it. Called only when there is one."""

    def clear(self) -> None:
        """Forget all blocks."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[KVCacheBlock]: ...


class LRUPolicy:
    """Least recently used first; of one request, the last block first.

    Why the oldest never has a cached child: a child can be held or touched only together with its parent, and is
    always released before it.
    """

    def __init__(self) -> None:
        self._queue: OrderedDict[KVCacheBlock, None] = OrderedDict()

    def add(self, block: KVCacheBlock) -> None:
        """The block becomes the newest."""
        self._queue[block] = None

    def remove(self, block: KVCacheBlock) -> None:
        """Take it out, wherever it stands."""
        del self._queue[block]

    def evict(self) -> KVCacheBlock:
        """The oldest."""
        return self._queue.popitem(last=False)[0]

    def clear(self) -> None:
        """Forget all."""
        self._queue.clear()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return iter(self._queue)
