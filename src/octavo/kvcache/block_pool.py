"""The pool: every block, who holds how many, and which can be had."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.kvcache.block import KVCacheBlock
from octavo.kvcache.eviction import EvictionPolicy
from octavo.kvcache.free_queue import FreeQueue
from octavo.kvcache.policies.lru import LRUPolicy
from octavo.kvcache.prefix_cache import PrefixCache


class BlockPool:
    """``num_blocks`` blocks of ``block_size`` tokens, with reference counts.

    After every call ``blank + cached + held == num_blocks`` (see :class:`KVCacheBlock` for the states).

    Attributes:
        blocks: all blocks, by id.
        policy: who chooses the cached block to give up.
        cache: the tree of cached prefixes.
        num_held: blocks with a reference.
        num_evictions: cached blocks given up so far.
        now_s: the engine's clock as of this step; set by the scheduler.
    """

    def __init__(self, num_blocks: int, block_size: int, policy: EvictionPolicy | None = None) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.policy: EvictionPolicy = policy if policy is not None else LRUPolicy()
        self.free_queue = FreeQueue(self.blocks, self.policy)
        self.cache = PrefixCache()
        self.num_held = 0
        self.num_evictions = 0
        self.now_s = 0.0

    def get_num_free_blocks(self) -> int:
        """Blocks that can be had: blank ones and cached ones that nobody holds."""
        return self.num_blocks - self.num_held

    def get_num_cached_blocks(self) -> int:
        """Blocks that nobody holds, but a request may find in the prefix cache."""
        return len(self.policy)

    def allocate_block(self) -> KVCacheBlock | None:
        """A blank block with one reference, evicting a cached one if need be; ``None`` if all are held."""
        return self.allocate_blocks(1)[0] if self.num_held < self.num_blocks else None

    def allocate_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """So many blank blocks with one reference each; the caller has seen that there are enough."""
        assert num_blocks <= self.get_num_free_blocks(), (num_blocks, self.get_num_free_blocks())
        blocks = self.free_queue.pop_blanks(num_blocks)
        while len(blocks) < num_blocks:
            blocks += self._evict(num_blocks - len(blocks))
        if len(blocks) > num_blocks:
            for block in blocks[num_blocks:]:
                self.free_queue.push_blank(block)
            del blocks[num_blocks:]
        for block in blocks:
            block.ref_count = 1
        self.num_held += num_blocks
        return blocks

    def hold_block(self, block: KVCacheBlock) -> None:
        """One more reference to a held or cached block."""
        if block.ref_count == 0:
            assert block.is_cached, block
            self.free_queue.remove(block)
            self.num_held += 1
        block.ref_count += 1

    def free_block(self, block: KVCacheBlock) -> None:
        """One reference less. The last one makes the block cached, or blank if the prefix cache does not know it."""
        assert block.ref_count > 0, f"double free of {block}"
        block.ref_count -= 1
        if block.ref_count == 0:
            self.num_held -= 1
            if block.is_cached:
                block.last_used_s = self.now_s
                self.free_queue.push_cached(block)
            else:
                self.free_queue.push_blank(block)

    def drop_cached(self, block: KVCacheBlock) -> None:
        """Make a cached block blank now. It must have no children and no holder."""
        assert block.ref_count == 0, block
        self.free_queue.drop(block)
        self.cache.remove([block])
        self.free_queue.push_blank(block)

    def audit(self) -> str | None:
        """Compare the counts in O(1); returns what is wrong."""
        num_blank, num_cached = len(self.free_queue.blank), len(self.policy)
        if num_blank + num_cached + self.num_held != self.num_blocks:
            return f"{num_blank} blank + {num_cached} cached + {self.num_held} held blocks are not {self.num_blocks}"
        if not num_cached <= self.cache.num_blocks <= num_cached + self.num_held:
            return f"{self.cache.num_blocks} blocks in the prefix cache, {num_cached} cached and {self.num_held} held"
        return None

    def rebuild(self, references: Mapping[KVCacheBlock, int]) -> None:
        """Make every account follow from the true references; the prefix cache starts empty."""
        self.cache = PrefixCache()
        self.policy.clear()
        for block in self.blocks:
            block.ref_count = references.get(block, 0)
            block.parent, block.next_same_hash = None, None
            block.tokens, block.children = b"", []
        self.free_queue.blank = [block for block in reversed(self.blocks) if block.ref_count == 0]
        self.num_held = self.num_blocks - len(self.free_queue.blank)

    def check_integrity(self) -> None:
        """Compare the whole pool with its own accounts. O(num_blocks). Raises ``AssertionError`` with the numbers."""
        blank, cached = set(self.free_queue.blank), set(self.policy)
        held = {block for block in self.blocks if block.ref_count > 0}
        assert len(blank) == len(self.free_queue.blank), "a block is twice on the free list"
        assert len(blank) + len(cached) + len(held) == self.num_blocks, (len(blank), len(cached), len(held))
        assert blank | cached | held == set(self.blocks), "a block is in two states"
        assert self.num_held == len(held), (self.num_held, len(held))
        assert all(not block.is_cached for block in blank), "a blank block is in the prefix cache"
        assert all(block.is_cached for block in cached), "a block waits for eviction, but is not in the prefix cache"
        self.cache.check_integrity(self.block_size)
        for block in self.blocks:
            parent = block.parent
            if parent is not None and parent.block_id >= 0:
                assert parent.is_cached, f"{block} continues {parent}, which is not cached"
                assert parent.ref_count > 0 or block.ref_count == 0, f"{block} is held, its parent {parent} is not"

    def _evict(self, num_blocks: int) -> list[KVCacheBlock]:
        blocks = self.free_queue.pop_cached(num_blocks)
        self.cache.remove(blocks)
        self.num_evictions += len(blocks)
        return blocks
