"""What policies with queues in order of arrival have in common: a block that is used stays in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo.kvcache.block import KVCacheBlock
from octavo.kvcache.eviction import Turn


class FifoPolicy:
    """Counts the uses of each block, up to ``most_uses``, and knows who is idle; a subclass has the queues.

    Attributes:
        uses: of all blocks in the queues, held ones included.
        idle: those that nobody holds.
    """

    learns = False

    def __init__(self, most_uses: int) -> None:
        self._most_uses = most_uses
        self.uses: dict[KVCacheBlock, int] = {}
        self.idle: dict[KVCacheBlock, None] = {}

    def begin(self, request_id: str, chain: Sequence[int], now_s: float) -> None:
        """Nothing to learn."""

    def end(self, request_id: str, blocks: Sequence[KVCacheBlock], turn: Turn, now_s: float) -> None:
        """Nothing to learn."""

    def add(self, block: KVCacheBlock) -> None:
        """A new block is enqueued; one that was here before stays in its place."""
        self.idle[block] = None
        if block not in self.uses:
            self.uses[block] = 0
            self.enqueue(block)

    def enqueue(self, block: KVCacheBlock) -> None:
        """Give a new block its place."""
        raise NotImplementedError

    def remove(self, block: KVCacheBlock) -> None:
        """The block is used again."""
        del self.idle[block]
        self.uses[block] = min(self.uses[block] + 1, self._most_uses)

    def drop(self, block: KVCacheBlock) -> None:
        """Forget it; a subclass takes it out of its queue."""
        del self.idle[block], self.uses[block]

    def clear(self) -> None:
        """Forget all."""
        self.idle.clear()
        self.uses.clear()

    def __len__(self) -> int:
        return len(self.idle)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return iter(self.idle)
