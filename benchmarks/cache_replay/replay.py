"""Replay a trace through the engine's own KV cache manager, one request at a time."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from cache_replay.traces import TraceRequest

from octavo.kvcache.eviction import EvictionPolicy, Turn
from octavo.kvcache.manager import PagedKVCacheManager
from octavo.namespace import DEFAULT_NAMESPACE

_LAST_TOKEN = array("i", [-1])


def replay(requests: Sequence[TraceRequest], capacity: int, policy: EvictionPolicy, *, block_tokens: int = 2) -> int:
    """Hit blocks over all requests, with ``capacity`` blocks for their full blocks.

    A block's tokens are its id and zeros, so equal ids meet in the prefix cache. How many zeros decides nothing but the
    time to hash them, so the manager has blocks of ``block_tokens``; the policy is told of the real ones. Each prompt
    has one token more than its full blocks (the engine always computes the last one), and the pool one block more, for
    that token. So ``block_tokens`` must be two at least: in a block of one, that token would count as a full block.
    """
    manager = PagedKVCacheManager(capacity + 1, block_tokens, policy=policy)
    num_hits = 0
    for number, request in enumerate(requests):
        blocks = request.blocks[:capacity]
        tokens = array("i", bytes(4 * block_tokens * len(blocks)))
        tokens[::block_tokens] = array("i", blocks)
        num_full = len(tokens)
        tokens.extend(_LAST_TOKEN)
        name = str(number)
        manager.block_pool.now_s = request.arrival_s
        match = manager.match_prefix(tokens)
        admitted = manager.admit(name, len(tokens), match, DEFAULT_NAMESPACE, tokens)
        assert admitted is not None, (number, len(blocks), capacity)
        manager.take_copies()
        num_hits += len(match.blocks)
        manager.cache_blocks(name, tokens, num_full)
        manager.free(name, Turn(request.num_output_tokens, request.ending))
        manager.take_updates()
    return num_hits
