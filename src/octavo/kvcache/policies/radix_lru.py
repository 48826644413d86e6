"""Radix LRU, as SGLang does it: whole leaves of the prefix tree go at once, the least recently used first.

Zheng et al., "SGLang: Efficient execution of structured language model programs", NeurIPS 2024. A leaf is the run of
blocks from the last one back to where another prefix branches off, or to a block that somebody holds.
"""

from __future__ import annotations

from octavo.kvcache.block import KVCacheBlock
from octavo.kvcache.policies.lru import LRUPolicy


class RadixLRUPolicy(LRUPolicy):
    """LRU that gives up more than is asked for: what is left of a prefix whose end is gone is not kept."""

    def evict(self, num_blocks: int) -> list[KVCacheBlock]:
        """The oldest block, and what comes before it and nothing else continues; O(1) for each block."""
        blocks = super().evict(1)
        parent = blocks[0].parent
        while parent is not None and parent in self._queue and len(parent.children) == 1:
            self.remove(parent)
            blocks.append(parent)
            parent = parent.parent
        return blocks
