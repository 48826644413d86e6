"""How fast are blocks like these used again, as they age? Learned online, from nothing but the requests seen.

A life table: age is cut into bins, and each bin has a rate of reuse, P(reused in this bin | not yet). Features of a
segment multiply the rates. Each number is a Gamma posterior, which learns, in O(1), that a segment was reused in a bin
or outlived it. There is no training and no learning rate.

From the rates follows what keeping a block is worth: the Gittins index, the most reuses per second that it can still
earn over all stopping ages (Gittins, "Bandit processes and dynamic allocation indices", 1979; for caches: Beckmann et
al., "LHD", NSDI 2018, which uses the age alone).

This file uses numpy: observations wait until :meth:`HazardModel.refresh` and are then learned a few at a time. One by
one, in pure Python, they were most of what the policy costs, and took 20 times as long.
"""

from __future__ import annotations

import math
from array import array
from itertools import pairwise

import numpy as np

Features = tuple[tuple[object, ...], ...]
Observation = tuple[bytes, int, float, float]
"""``Profile.rows``, age bin, exposure, reuses."""

AGE_EDGES_S = [0.0] + [2.0 ** (k / 2) for k in range(34)]  # 0, 1, then half octaves up to a day
AGE_BINS = len(AGE_EDGES_S)
AGE_WIDTHS_S = [end - start for start, end in pairwise(AGE_EDGES_S)] + [AGE_EDGES_S[-1]]
ZONES = 11
ZONE_OF_BIN = np.minimum(np.arange(AGE_BINS) // 3, ZONES - 1)  # 1.5 octaves of age

PRIOR_RATE = 0.02  # reuses per half octave of age before anything is seen: rate ~ 1 / age, under which the order is LRU
BASE_EVIDENCE = 0.04  # strength of each prior, in reuses observed: of the rate of an age bin,
FACTOR_EVIDENCE = 6.0  # of a feature's factor,
ZONE_EVIDENCE = 40.0  # and of its correction in one zone of ages
MAX_PROBABILITY = 0.95  # of reuse within one age bin
ENTRY_SHARE = 0.25  # of an exposure counts on entry: bins that nobody has left yet would else see nothing but reuse
BATCH = 32  # observations that are learned at once
MAX_PROFILES = 8192  # combinations of features whose levels are kept

LEVELS, LEVEL_STEP, LOWEST_LOG_INDEX = 128, 0.15, -18.0  # steps of 16 %, from 1.5e-8 reuses per second


class Profile:
    """One combination of features.

    Attributes:
        rows: where the model keeps the factor of each feature, as the bytes of 64-bit integers.
        levels: of the index, by age bin, as of version ``fitted``.
    """

    __slots__ = ("fitted", "levels", "rows")

    def __init__(self, rows: bytes) -> None:
        self.rows = rows
        self.fitted = -1
        self.levels: list[int] = []


class HazardModel:
    """P(reuse within an age bin | still unused) = base(bin) × the factors of the segment's features.

    A factor is a number for all ages and a correction for each zone of ages. All numbers stand in one row, as the log
    of the mean and the shape (reuses seen, prior included) of their Gamma posteriors::

        base                factor of feature 0           factor of feature 1
        bin 0 … bin 34      all ages, zone 0 … zone 10    all ages, zone 0 … zone 10    …

    Attributes:
        version: of the levels; :meth:`refresh` raises it.
    """

    def __init__(self) -> None:
        self.version = 0
        self._log_means = np.full(AGE_BINS, math.log(PRIOR_RATE))
        self._evidence = np.full(AGE_BINS, BASE_EVIDENCE)
        self._num_rows = AGE_BINS
        self._row_of: dict[tuple[object, ...], int] = {}
        self._profiles: dict[Features, Profile] = {}
        self._observations: list[Observation] = []

    def profile(self, features: Features) -> Profile:
        """The shared record of this combination; each feature is a name followed by its values."""
        found = self._profiles.get(features)
        if found is None:
            if len(self._profiles) >= MAX_PROFILES:
                self._profiles.clear()  # whoever uses one keeps it; the others are cheap to build again
            found = Profile(array("q", [self._row(feature) for feature in features]).tobytes())
            self._profiles[features] = found
        return found

    def enter(self, profile: Profile, age_bin: int, weight: float) -> None:
        """A segment reaches this age bin; ``weight`` is its share of one observation."""
        self._observations.append((profile.rows, age_bin, ENTRY_SHARE * weight, 0.0))

    def leave(self, profile: Profile, age_bin: int, weight: float, *, reused: bool) -> None:
        """The segment was reused in this age bin, or outlived it."""
        self._observations.append((profile.rows, age_bin, (1 - ENTRY_SHARE) * weight, weight if reused else 0.0))

    def refresh(self) -> None:
        """Learn from all observations so far; the levels follow."""
        for first in range(0, len(self._observations), BATCH):
            self._learn(self._observations[first : first + BATCH])
        self._observations.clear()
        self.version += 1

    def level(self, profile: Profile, age_bin: int) -> int:
        """The index at this age on a logarithmic scale, 0 to ``LEVELS - 1``."""
        if profile.fitted != self.version:
            steps = (np.log(np.array(self.indices(profile)) + 1e-12) - LOWEST_LOG_INDEX) / LEVEL_STEP
            profile.fitted, profile.levels = self.version, np.clip(steps, 0, LEVELS - 1).astype(int).tolist()
        return profile.levels[age_bin]

    def indices(self, profile: Profile) -> list[float]:
        """Reuses per second that a block promises at best, in the (geometric) middle of each age bin. O(ages).

        From the last bin back, a bin is joined with what pays after it.
        """
        rows = np.frombuffer(profile.rows, np.int64)
        by_zone = self._log_means[rows[:, None] + np.arange(1 + ZONES)].sum(axis=0)
        log_hazards = self._log_means[:AGE_BINS] + by_zone[0] + by_zone[1 + ZONE_OF_BIN]
        hazards = np.minimum(np.exp(log_hazards), MAX_PROBABILITY).tolist()
        edges = [0.0] * AGE_BINS
        spans: list[tuple[float, float, float]] = []  # from a bin to its best stop: reuses, seconds held, P(outlive)
        for age_bin in reversed(range(AGE_BINS)):
            reuses = hazards[age_bin]
            seconds, alive = (1.0 - reuses / 2.0) * AGE_WIDTHS_S[age_bin], 1.0 - reuses
            while spans and spans[-1][0] * seconds > reuses * spans[-1][1]:  # going on pays more than stopping here
                more, longer, outlive = spans.pop()
                reuses, seconds, alive = reuses + alive * more, seconds + alive * longer, alive * outlive
            spans.append((reuses, seconds, alive))
            edges[age_bin] = reuses / seconds
        return [math.sqrt(start * end) for start, end in pairwise(edges)] + edges[-1:]

    # ---- parts -----------------------------------------------------------------------------------------------

    def _learn(self, batch: list[Observation]) -> None:
        """The conjugate update of all numbers that the batch concerns, each with the others held fixed."""
        rows_of_factors, *columns = zip(*batch, strict=True)
        bins, exposures, reuses = map(np.array, columns)
        factors = np.frombuffer(b"".join(rows_of_factors), np.int64).reshape(len(bins), -1)
        rows = np.concatenate((bins[:, None], factors, factors + 1 + ZONE_OF_BIN[bins][:, None]), axis=1)
        expected = exposures * np.minimum(np.exp(self._log_means[rows].sum(axis=1)), MAX_PROBABILITY)
        width = rows.shape[1]
        all_rows = rows.ravel()
        expected_of = np.bincount(all_rows, np.repeat(expected, width))
        reuses_of = np.bincount(all_rows, np.repeat(reuses, width))
        touched = np.flatnonzero(expected_of + reuses_of)
        evidence, gained = self._evidence[touched], reuses_of[touched]
        self._log_means[touched] += np.log((evidence + gained) / (evidence + expected_of[touched]))
        self._evidence[touched] = evidence + gained

    def _row(self, feature: tuple[object, ...]) -> int:
        """Where the factor of a feature begins."""
        row = self._row_of.get(feature)
        if row is None:
            row = self._row_of[feature] = self._num_rows
            self._num_rows += 1 + ZONES
            if self._num_rows > len(self._log_means):
                room = 2 * self._num_rows - len(self._log_means)
                self._log_means = np.append(self._log_means, np.zeros(room))
                self._evidence = np.append(self._evidence, np.full(room, ZONE_EVIDENCE))
            self._evidence[row] = FACTOR_EVIDENCE
        return row
