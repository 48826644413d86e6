"""S3-FIFO: a small queue on probation, a main queue, and a memory of what failed probation.

Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023. Added here: blocks that are held or
continued are passed over, to the back of their queue.
"""

from __future__ import annotations

from collections import OrderedDict

from octavo.kvcache.block import KVCacheBlock
from octavo.kvcache.policies.fifo import FifoPolicy

SMALL_SHARE = 0.1  # of the pool, for blocks on probation
MOST_USES = 3  # that are counted


class S3FifoPolicy(FifoPolicy):
    """A block that was used while in the small queue moves to the main one; in there each use buys one more round.

    ``evict`` is O(blocks) at worst.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(MOST_USES)
        self._most_small = max(1, int(num_blocks * SMALL_SHARE))
        self._most_ghosts = max(1, num_blocks - self._most_small)
        self._small: OrderedDict[KVCacheBlock, None] = OrderedDict()
        self._main: OrderedDict[KVCacheBlock, None] = OrderedDict()
        self._ghosts: OrderedDict[tuple[int, int], None] = OrderedDict()

    def enqueue(self, block: KVCacheBlock) -> None:
        """It is on probation, unless it failed that not long ago."""
        known = _content(block) in self._ghosts
        self._ghosts.pop(_content(block), None)
        (self._main if known else self._small)[block] = None

    def drop(self, block: KVCacheBlock) -> None:
        """Forget it."""
        super().drop(block)
        self._small.pop(block, None)
        self._main.pop(block, None)

    def evict(self, num_blocks: int) -> list[KVCacheBlock]:
        """From the small queue while that is over its share, else from the main one; from the other if need be."""
        while True:
            small_first = len(self._small) > self._most_small
            block = self._take_small() if small_first else self._take_main()
            block = block or (self._take_main() if small_first else self._take_small())
            if block is not None:
                del self.idle[block], self.uses[block]
                return [block]

    def _take_small(self) -> KVCacheBlock | None:
        for _ in range(len(self._small)):
            block, _ = self._small.popitem(last=False)
            if self.uses[block] > 0:
                self._main[block] = None
            elif block in self.idle and not block.children:
                self._ghosts[_content(block)] = None
                if len(self._ghosts) > self._most_ghosts:
                    self._ghosts.popitem(last=False)
                return block
            else:
                self._small[block] = None
        return None

    def _take_main(self) -> KVCacheBlock | None:
        for _ in range(len(self._main)):
            block, _ = self._main.popitem(last=False)
            if block in self.idle:
                if self.uses[block] == 0 and not block.children:
                    return block
                self.uses[block] = max(self.uses[block] - 1, 0)
            self._main[block] = None
        return None

    def clear(self) -> None:
        """Forget all."""
        super().clear()
        for blocks in (self._small, self._main, self._ghosts):
            blocks.clear()


def _content(block: KVCacheBlock) -> tuple[int, int]:
    """Names what is in a block; the length tells a partly filled tail from its parent."""
    return block.prefix_hash, len(block.tokens)
