"""Least recently used first: vLLM's order, and the yardstick."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from octavo.kvcache.block import KVCacheBlock
from octavo.kvcache.eviction import Turn


class LRUPolicy:
    """Least recently used first; of one request, the last block first. Every operation is O(1).

    Why the oldest never has a cached child: a child can be held or touched only together with its parent, and is
    always released before it.
    """

    learns = False

    def __init__(self) -> None:
        self._queue: OrderedDict[KVCacheBlock, None] = OrderedDict()

    def begin(self, request_id: str, chain: Sequence[int], now_s: float) -> None:
        """Nothing to learn."""

    def end(self, request_id: str, blocks: Sequence[KVCacheBlock], turn: Turn, now_s: float) -> None:
        """Nothing to learn."""

    def add(self, block: KVCacheBlock) -> None:
        """The block becomes the newest."""
        self._queue[block] = None

    def remove(self, block: KVCacheBlock) -> None:
        """Take it out, wherever it stands."""
        del self._queue[block]

    def drop(self, block: KVCacheBlock) -> None:
        """Take it out, wherever it stands."""
        del self._queue[block]

    def evict(self, num_blocks: int) -> list[KVCacheBlock]:
        """The oldest."""
        take = self._queue.popitem
        return [take(last=False)[0] for _ in range(num_blocks)]

    def clear(self) -> None:
        """Forget all."""
        self._queue.clear()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return iter(self._queue)
