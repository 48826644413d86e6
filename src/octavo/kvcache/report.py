"""What the KV cache holds, for people and for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.kvcache.block import KVCacheBlock
from octavo.kvcache.manager import PagedKVCacheManager
from octavo.namespace import Namespace

AGE_BOUNDS_S = (1.0, 10.0, 60.0, 600.0, 3600.0)


@dataclass(frozen=True, slots=True)
class RequestMemory:
    """What one request holds.

    Attributes:
        num_shared_blocks: blocks that somebody else holds, too.
        num_wasted_slots: token slots in its blocks that hold no token.
    """

    request_id: str
    num_blocks: int
    num_shared_blocks: int
    num_wasted_slots: int


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """A cached prefix that nothing longer continues.

    Attributes:
        num_blocks: blocks from the first token to its end; prefixes may share some.
        num_hits: times that its last block was found.
        age_s: since its last block was given back; 0 while it is held.
        pins: names that hold all of it.
    """

    namespace: Namespace
    token_ids: tuple[int, ...]
    num_blocks: int
    num_hits: int
    age_s: float
    pins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The pool at one moment; ``num_blank + num_cached + num_held == num_blocks``.

    Attributes:
        cached_by_age: cached blocks by seconds since they were last held: upper bound → count; infinity for the rest.
    """

    block_size: int
    num_blocks: int
    num_blank: int
    num_cached: int
    num_held: int
    num_pinned: int
    num_evictions: int
    requests: list[RequestMemory]
    cached_by_age: dict[float, int]


def memory_report(manager: PagedKVCacheManager, num_tokens: Mapping[str, int]) -> MemoryReport:
    """Who holds what. O(num_blocks).

    Args:
        num_tokens: by request id: tokens whose KV is in its blocks.
    """
    pool = manager.block_pool
    return MemoryReport(
        block_size=manager.block_size,
        num_blocks=pool.num_blocks,
        num_blank=len(pool.free_queue.blank),
        num_cached=pool.get_num_cached_blocks(),
        num_held=pool.num_held,
        num_pinned=manager.num_pinned_blocks,
        num_evictions=pool.num_evictions,
        requests=[_request_memory(manager, request_id, num_tokens[request_id]) for request_id in manager.request_ids()],
        cached_by_age=_count_by_age(list(pool.free_queue.policy), pool.now_s),
    )


def cached_prefixes(manager: PagedKVCacheManager, limit: int = 1000) -> list[CachedPrefix]:
    """The cached prefixes, most hits first, at most ``limit``."""
    prefixes = [
        _cached_prefix(manager, namespace, block)
        for namespace, root in manager.block_pool.cache.roots().items()
        for block in _leaves(root)
    ]
    return sorted(prefixes, key=lambda prefix: -prefix.num_hits)[:limit]


def _request_memory(manager: PagedKVCacheManager, request_id: str, num_tokens: int) -> RequestMemory:
    table = manager.get_block_table(request_id)
    num_shared = sum(block.ref_count > 1 for block in table.blocks)
    return RequestMemory(request_id, len(table), num_shared, len(table) * manager.block_size - num_tokens)


def _cached_prefix(manager: PagedKVCacheManager, namespace: Namespace, leaf: KVCacheBlock) -> CachedPrefix:
    path: list[KVCacheBlock] = []
    block: KVCacheBlock | None = leaf
    while block is not None and block.block_id >= 0:
        path.append(block)
        block = block.parent
    data = b"".join(block.tokens for block in reversed(path))
    return CachedPrefix(
        namespace=namespace,
        token_ids=tuple(memoryview(data).cast("i")),
        num_blocks=len(path),
        num_hits=leaf.num_hits,
        age_s=0.0 if leaf.ref_count else manager.block_pool.now_s - leaf.last_used_s,
        pins=tuple(pin.name for pin in manager.pins.values() if leaf in pin.blocks),
    )


def _leaves(root: KVCacheBlock) -> list[KVCacheBlock]:
    leaves, pending = [], [root]
    while pending:
        block = pending.pop()
        if block.children:
            pending.extend(block.children)
        elif block.block_id >= 0:
            leaves.append(block)
    return leaves


def _count_by_age(blocks: list[KVCacheBlock], now_s: float) -> dict[float, int]:
    counts = dict.fromkeys((*AGE_BOUNDS_S, float("inf")), 0)
    for block in blocks:
        counts[next(bound for bound in counts if now_s - block.last_used_s <= bound)] += 1
    return counts
