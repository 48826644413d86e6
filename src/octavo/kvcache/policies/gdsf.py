"""Greedy-Dual-Size-Frequency: keep what is used often and dear to compute; age by a rising clock.

Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy", HP Labs, 1998. All
blocks have one size here, and the cost of one is its prefill: the deeper, the more attention.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from octavo.kvcache.block import KVCacheBlock
from octavo.kvcache.eviction import Turn

TOKENS_OF_EQUAL_COST = 30000
"""Depth at which attention costs as much as the linear layers, in a model of 8 billion parameters."""


class GDSFPolicy:
    """Evicts the leaf with the lowest priority: clock when last used + uses × cost. O(log blocks) per operation.

    It learns no more than how deep a block lies, which costs O(blocks) per finished request.
    """

    learns = True

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._clock = 0.0
        self._num_entries = 0
        self._depths: dict[KVCacheBlock, int] = {}
        self._priorities: dict[KVCacheBlock, float] = {}  # of blocks that nobody holds
        self._leaves: list[tuple[float, int, KVCacheBlock]] = []  # a heap; entries that are out of date stay in
        self._entries: dict[KVCacheBlock, int] = {}  # which entry of a leaf is the current one

    def begin(self, request_id: str, chain: Sequence[int], now_s: float) -> None:
        """Nothing to learn."""

    def end(self, request_id: str, blocks: Sequence[KVCacheBlock], turn: Turn, now_s: float) -> None:
        """Note how deep the blocks lie."""
        for depth, block in enumerate(blocks):
            self._depths[block] = depth

    def add(self, block: KVCacheBlock) -> None:
        """Its priority counts from the clock as of now."""
        depth = self._depths.get(block)
        if depth is None:  # a partly filled tail
            assert block.parent is not None, block
            depth = self._depths[block] = self._depths.get(block.parent, -1) + 1
        cost = 1.0 + (depth + 0.5) * self._block_size / TOKENS_OF_EQUAL_COST
        self._priorities[block] = self._clock + (1 + block.num_hits) * cost
        if not block.children:
            self._push(block)

    def remove(self, block: KVCacheBlock) -> None:
        """The block must stay."""
        del self._priorities[block]
        self._entries.pop(block, None)

    def drop(self, block: KVCacheBlock) -> None:
        """Forget it; its parent may be a leaf now."""
        del self._priorities[block], self._depths[block], self._entries[block]
        parent = block.parent
        if parent in self._priorities and all(child is block for child in parent.children):
            self._push(parent)

    def evict(self, num_blocks: int) -> list[KVCacheBlock]:
        """The leaf with the lowest priority, which the clock moves up to."""
        while True:
            priority, entry, block = heapq.heappop(self._leaves)
            if self._entries.get(block) == entry:
                self._clock = max(self._clock, priority)
                self.drop(block)
                return [block]

    def _push(self, block: KVCacheBlock) -> None:
        self._num_entries += 1
        self._entries[block] = self._num_entries
        heapq.heappush(self._leaves, (self._priorities[block], self._num_entries, block))
        if len(self._leaves) > 2 * len(self._entries) + 64:
            self._leaves = [each for each in self._leaves if self._entries.get(each[2]) == each[1]]
            heapq.heapify(self._leaves)

    def clear(self) -> None:
        """Forget all; the clock goes on."""
        self._leaves.clear()
        for blocks in (self._depths, self._priorities, self._entries):
            blocks.clear()

    def __len__(self) -> int:
        return len(self._priorities)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return iter(self._priorities)
