"""One block of the pool, and what the prefix cache knows about it."""

from __future__ import annotations


class KVCacheBlock:
    """``block_size`` token slots of K and V over all layers.

    A block is in exactly one state:

    - **blank**: on the free list; its contents mean nothing;
    - **held**: ``ref_count`` requests have it in their block tables (or a pin or a pending copy keeps it);
    - **cached**: nobody holds it, but its tokens are in the prefix cache; the eviction policy may take it.

    Cached contents form a tree: the parent of a block holds the tokens before its own, so a block together with its
    ancestors names a whole prefix. A held block may be in the tree, too. The roots of the tree own no memory: there is
    one for each namespace (salt, adapter), with ``block_id`` -1.

    Attributes:
        parent: where its tokens continue; ``None`` outside the prefix cache (and for a root).
        tokens: its tokens, four bytes each; shorter than the block for the partial tail of a finished request.
        prefix_hash: chained hash of the whole prefix that ends here.
        next_same_hash: another full block of the same hash: a collision.
        children: cached continuations, sorted by ``tokens``, so that the longest common beginning is a neighbour.
        num_hits: times that a request found it in the cache.
        last_used_s: when it was last given back, seconds on the engine's clock.
    """

    __slots__ = (
        "block_id",
        "children",
        "last_used_s",
        "next_same_hash",
        "num_hits",
        "parent",
        "prefix_hash",
        "ref_count",
        "tokens",
    )

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.parent: KVCacheBlock | None = None
        self.tokens = b""
        self.prefix_hash = 0
        self.next_same_hash: KVCacheBlock | None = None
        self.children: list[KVCacheBlock] = []
        self.num_hits = 0
        self.last_used_s = 0.0

    @property
    def is_cached(self) -> bool:
        """Whether the prefix cache can find it (held or not)."""
        return self.parent is not None

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, refs={self.ref_count}, tokens={len(self.tokens) // 4})"
