"""S3-FIFO: a small queue on probation, a main queue, and a memory of what failed probation.

Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023. Added here: blocks that are held or
continued are passed over, to the back of their queue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from octavo.kvcache.block import KVCacheBlock
from octavo.kvcache.eviction import Turn

SMALL_SHARE = 0.1  # of the pool, for blocks on probation
MOST_USES = 3  # that are counted


class S3FifoPolicy:
    """A block that was used while in the small queue moves to the main one; in there each use buys one more round.

    ``evict`` is O(blocks) at worst.
    """

    learns = False

    def __init__(self, num_blocks: int) -> None:
        self._most_small = max(1, int(num_blocks * SMALL_SHARE))
        self._most_ghosts = max(1, num_blocks - self._most_small)
        self._small: OrderedDict[KVCacheBlock, None] = OrderedDict()
        self._main: OrderedDict[KVCacheBlock, None] = OrderedDict()
        self._ghosts: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._uses: dict[KVCacheBlock, int] = {}  # all blocks of both queues, held ones included
        self._idle: dict[KVCacheBlock, None] = {}

    def begin(self, request_id: str, chain: Sequence[int], now_s: float) -> None:
        """Nothing to learn."""

    def end(self, request_id: str, blocks: Sequence[KVCacheBlock], turn: Turn, now_s: float) -> None:
        """Nothing to learn."""

    def add(self, block: KVCacheBlock) -> None:
        """A new block is on probation, unless it failed that not long ago."""
        self._idle[block] = None
        if block not in self._uses:
            self._uses[block] = 0
            known = _content(block) in self._ghosts
            self._ghosts.pop(_content(block), None)
            (self._main if known else self._small)[block] = None

    def remove(self, block: KVCacheBlock) -> None:
        """The block is used again."""
        del self._idle[block]
        self._uses[block] = min(self._uses[block] + 1, MOST_USES)

    def drop(self, block: KVCacheBlock) -> None:
        """Forget it."""
        del self._idle[block], self._uses[block]
        self._small.pop(block, None)
        self._main.pop(block, None)

    def evict(self, num_blocks: int) -> list[KVCacheBlock]:
        """From the small queue while that is over its share, else from the main one; from the other if need be."""
        while True:
            small_first = len(self._small) > self._most_small
            block = self._take_small() if small_first else self._take_main()
            block = block or (self._take_main() if small_first else self._take_small())
            if block is not None:
                del self._idle[block], self._uses[block]
                return [block]

    def _take_small(self) -> KVCacheBlock | None:
        for _ in range(len(self._small)):
            block, _ = self._small.popitem(last=False)
            if self._uses[block] > 0:
                self._main[block] = None
            elif block in self._idle and not block.children:
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
            if block in self._idle:
                if self._uses[block] == 0 and not block.children:
                    return block
                self._uses[block] = max(self._uses[block] - 1, 0)
            self._main[block] = None
        return None

    def clear(self) -> None:
        """Forget all."""
        for blocks in (self._small, self._main, self._uses, self._idle):
            blocks.clear()
        self._ghosts.clear()

    def __len__(self) -> int:
        return len(self._idle)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return iter(self._idle)


def _content(block: KVCacheBlock) -> tuple[int, int]:
    """Names what is in a block; the length tells a partly filled tail from its parent."""
    return block.prefix_hash, len(block.tokens)
