"""Blocks that can be had: blank ones first, then cached ones in the order of the eviction policy."""

from __future__ import annotations

from octavo.kvcache.block import KVCacheBlock
from octavo.kvcache.eviction import EvictionPolicy


class FreeQueue:
    """Every operation is O(1) (with the LRU policy), also taking a cached block out of the middle.

    ::

        pop ◄── blank, last freed first ◄── push_blank
            ◄── cached, the policy's order ◄── push_cached, remove (a prefix hit)
    """

    def __init__(self, blocks: list[KVCacheBlock], policy: EvictionPolicy) -> None:
        self.blank = blocks[::-1]
        self.policy = policy

    def __len__(self) -> int:
        return len(self.blank) + len(self.policy)

    def push_blank(self, block: KVCacheBlock) -> None:
        """A block whose contents mean nothing; it will be the next one out."""
        self.blank.append(block)

    def push_cached(self, block: KVCacheBlock) -> None:
        """A block that the prefix cache can still find."""
        self.policy.add(block)

    def remove(self, block: KVCacheBlock) -> None:
        """Take a cached block out: somebody holds it again."""
        self.policy.remove(block)

    def drop(self, block: KVCacheBlock) -> None:
        """Take a cached block out: it is leaving the prefix cache."""
        self.policy.drop(block)

    def pop_blanks(self, most: int) -> list[KVCacheBlock]:
        """Up to so many blank blocks; the last freed comes first."""
        blank = self.blank
        if most == 1:
            return [blank.pop()] if blank else []
        blocks = blank[: -most - 1 : -1]
        del blank[len(blank) - len(blocks) :]
        return blocks

    def pop_cached(self, num_blocks: int) -> list[KVCacheBlock]:
        """Cached blocks to evict, at best so many; the caller takes them out of the prefix cache, in this order."""
        return self.policy.evict(num_blocks)
