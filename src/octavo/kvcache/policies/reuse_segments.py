"""What the reuse policy ranks: runs of blocks with one history, in buckets of equal promise."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from octavo.kvcache.block import KVCacheBlock
from octavo.kvcache.policies.reuse_model import LEVELS, Profile


@dataclass(slots=True, eq=False)
class Segment:
    """A run of blocks that have always been used together.

    ::

        hashes   h0 h1 h2 h3 h4 h5     known
        cached   b0 b1 b2 b3           in the prefix cache: always the beginning, given up from its end
        held     ── ──                 by running requests: always the beginning of that

    Attributes:
        parent: the segment that it continues; ``None``: nothing.
        hashes: prefix hashes of its blocks; empty for a loose block, which is known by its place in the cache only
            (the partly filled tail of a request).
        cached: its blocks that are in the prefix cache.
        children: known segments that continue it.
        forks: continuations ever seen.
        hits: times used again.
        pins: running requests whose prompt has it.
        weight: share of the observation that began when its blocks were last used together.
        last_use_s: end of the last request that used it.
        interval_s: between its last two uses; at first, since its parent's use before that; ``None``: unknown.
        age_bin: of the time since ``last_use_s``.
        level: bucket in which it waits while its last cached block may be evicted.
    """

    parent: Segment | None
    hashes: list[int]
    cached: list[KVCacheBlock]
    children: int = 0
    forks: int = 0
    hits: int = 0
    pins: int = 0
    weight: float = 1.0
    last_use_s: float = 0.0
    interval_s: float | None = None
    age_bin: int = 0
    profile: Profile | None = None
    level: int | None = None

    def cut(self, count: int) -> Segment:
        """Cut the first ``count`` blocks off as a new parent with the same history; returns it."""
        share = count / len(self.hashes)
        upper = Segment(
            parent=self.parent,
            hashes=self.hashes[:count],
            cached=self.cached[:count],
            children=1,
            forks=1,
            hits=self.hits,
            pins=self.pins,
            weight=self.weight * share,
            last_use_s=self.last_use_s,
            interval_s=self.interval_s,
            age_bin=self.age_bin,
            profile=self.profile,
        )
        self.parent = upper
        del self.hashes[:count]
        del self.cached[:count]
        self.weight *= 1.0 - share
        return upper


class Buckets:
    """Segments by promise, in steps; first in, first out within one. Every operation is O(1) (a 128-bit mask)."""

    def __init__(self) -> None:
        self._buckets: list[OrderedDict[Segment, None]] = [OrderedDict() for _ in range(LEVELS)]
        self._occupied = 0  # bit k: bucket k is not empty

    def put(self, segment: Segment, level: int) -> None:
        """The segment waits at ``level`` from now on, behind the others there."""
        self.take(segment)
        segment.level = level
        self._buckets[level][segment] = None
        self._occupied |= 1 << level

    def take(self, segment: Segment) -> None:
        """The segment waits no more, if it did."""
        if segment.level is not None:
            bucket = self._buckets[segment.level]
            del bucket[segment]
            if not bucket:
                self._occupied &= ~(1 << segment.level)
            segment.level = None

    def lowest(self) -> Segment:
        """The first of the lowest level; there must be one."""
        level = (self._occupied & -self._occupied).bit_length() - 1
        return next(iter(self._buckets[level]))


def log2_class(x: float) -> int:
    """0 below 1, else 1 + floor(log2 x)."""
    return 1 + int(math.log2(x)) if x >= 1 else 0
