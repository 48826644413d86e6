"""The most that any cache could have hit, knowing the future.

Keeping a block from one use to the next saves one block and takes one slot of the pool in between. So the optimum is
the largest set of such intervals of which at most ``capacity - len(request)`` span any request; dropping the interval
that ends last, whenever there are too many, is optimal for it (Belady's rule for intervals; Carlisle and Lloyd, "On
the k-coloring of intervals", 1995). That a block counts only together with its prefix costs nothing: no block is used
again later than the ones that continue it, so with ties broken deepest first what is kept is always whole prefixes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

NEVER = 1 << 60


def optimum(requests: Sequence[Sequence[int]], capacity: int) -> int:
    """Hit blocks over all requests. A request is its blocks' ids, root first; an id names its whole prefix.

    While a request is served all its blocks are in the pool (of a longer one, the first ``capacity``).
    """
    chains = [request[:capacity] for request in requests]
    kept: dict[int, int] = {}  # block → the request that uses it next
    latest: list[tuple[int, int, int]] = []  # -next use, -depth, block; entries of blocks that are gone stay in
    num_hits = 0
    for chain, next_uses in zip(chains, _next_uses(chains), strict=True):
        for block in chain:
            num_hits += kept.pop(block, None) is not None
        while len(kept) > capacity - len(chain):
            next_use, _, block = heapq.heappop(latest)
            if kept.get(block) == -next_use:
                del kept[block]
        for depth, (block, next_use) in enumerate(zip(chain, next_uses, strict=True)):
            if next_use < NEVER:
                kept[block] = next_use
                heapq.heappush(latest, (-next_use, -depth, block))
    return num_hits


def _next_uses(chains: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each block of each request, the next request with that block, or ``NEVER``."""
    last: dict[int, int] = {}
    uses: list[list[int]] = []
    for number in range(len(chains) - 1, -1, -1):
        uses.append([last.get(block, NEVER) for block in chains[number]])
        last.update(dict.fromkeys(chains[number], number))
    return uses[::-1]
