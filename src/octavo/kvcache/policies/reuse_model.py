"""How fast are blocks like these used again, as they age? Learned online, from nothing but the requests seen.

A life table: age is cut into bins, and each bin has a rate of reuse, P(reused in this bin | not yet). Features of a
segment multiply the rates. Each number is a Gamma posterior that is updated, in O(1), each time that a segment was
reused in a bin or outlived it. There is no training, no learning rate, no refit.

From the rates follows what keeping a block is worth: the Gittins index, the most reuses per second that it can still
earn over all stopping ages (Gittins, "Bandit processes and dynamic allocation indices", 1979; for caches: Beckmann et
al., "LHD", NSDI 2018, which uses the age alone).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

Features = tuple[tuple[object, ...], ...]

AGE_EDGES_S = [0.0] + [2.0 ** (k / 2) for k in range(34)]  # 0, 1, then half octaves up to a day
AGE_BINS = len(AGE_EDGES_S)
AGE_WIDTHS_S = [end - start for start, end in pairwise(AGE_EDGES_S)] + [AGE_EDGES_S[-1]]
ZONES = 11
ZONE_OF_BIN = [min(age_bin // 3, ZONES - 1) for age_bin in range(AGE_BINS)]  # 1.5 octaves of age

PRIOR_RATE = 0.02  # reuses per half octave of age before anything is seen: rate ~ 1 / age, under which the order is LRU
BASE_EVIDENCE = 0.04  # strength of each prior, in reuses observed: of the rate of an age bin,
FACTOR_EVIDENCE = 3.0  # of a feature's factor,
ZONE_EVIDENCE = 20.0  # and of its correction in one zone of ages
MAX_PROBABILITY = 0.95  # of reuse within one age bin
MAX_PROFILES = 8192  # combinations of features whose indices are kept


@dataclass(slots=True)
class Belief:
    """Gamma posterior of a multiplier: its log mean, and its shape (reuses seen, prior included)."""

    log_mean: float
    evidence: float

    def learn(self, reuses: float, expected: float) -> None:
        """The conjugate update with all other multipliers held fixed; ``expected`` is the mean times the exposure."""
        self.log_mean += math.log((self.evidence + reuses) / (self.evidence + expected))
        self.evidence += reuses


class Factor:
    """What one feature does to the rate of reuse: at all ages, and as a correction in each zone of ages."""

    __slots__ = ("overall", "zones")

    def __init__(self) -> None:
        self.overall = Belief(0.0, FACTOR_EVIDENCE)
        self.zones = [Belief(0.0, ZONE_EVIDENCE) for _ in range(ZONES)]


class Profile:
    """One combination of features: its factors, and its index at each edge of age as of version ``fitted``."""

    __slots__ = ("factors", "fitted", "index")

    def __init__(self, factors: list[Factor]) -> None:
        self.factors = factors
        self.fitted = -1
        self.index: list[float] = []


class HazardModel:
    """P(reuse within an age bin | still unused) = base(bin) × the factors of the segment's features.

    Attributes:
        version: raise it to have the indices computed anew, from what was learned since.
    """

    def __init__(self) -> None:
        self.version = 0
        self._base = [Belief(math.log(PRIOR_RATE), BASE_EVIDENCE) for _ in range(AGE_BINS)]
        self._factors: dict[tuple[object, ...], Factor] = {}
        self._profiles: dict[Features, Profile] = {}

    def profile(self, features: Features) -> Profile:
        """The shared record of this combination; each feature is a name followed by its values."""
        found = self._profiles.get(features)
        if found is None:
            if len(self._profiles) >= MAX_PROFILES:
                self._profiles.clear()  # whoever uses one keeps it; the others are cheap to build again
            found = Profile([self._factors.setdefault(feature, Factor()) for feature in features])
            self._profiles[features] = found
        return found

    def observe(self, profile: Profile, age_bin: int, weight: float, *, reused: bool) -> None:
        """A segment was reused in this age bin, or left it unused; ``weight`` is its share of one observation."""
        if not weight:
            return
        zone = ZONE_OF_BIN[age_bin]
        beliefs = [self._base[age_bin]]
        for factor in profile.factors:
            beliefs += (factor.overall, factor.zones[zone])
        expected = weight * min(MAX_PROBABILITY, math.exp(sum(belief.log_mean for belief in beliefs)))
        for belief in beliefs:
            belief.learn(weight if reused else 0.0, expected)

    def index(self, profile: Profile, age_bin: int) -> float:
        """Reuses per second that a block of this age promises at best, in the (geometric) middle of the bin."""
        if profile.fitted != self.version:
            profile.fitted, profile.index = self.version, self._fit(profile)
        start = profile.index[age_bin]
        return math.sqrt(start * profile.index[age_bin + 1]) if age_bin + 1 < AGE_BINS else start

    def _fit(self, profile: Profile) -> list[float]:
        """The index at each edge of age, in O(ages): from the last bin back, join a bin with what pays after it."""
        overall = sum(factor.overall.log_mean for factor in profile.factors)
        by_zone = [overall + sum(factor.zones[zone].log_mean for factor in profile.factors) for zone in range(ZONES)]
        index = [0.0] * AGE_BINS
        spans: list[tuple[float, float, float]] = []  # from a bin to its best stop: reuses, seconds held, P(outlive)
        for age_bin in reversed(range(AGE_BINS)):
            log_hazard = self._base[age_bin].log_mean + by_zone[ZONE_OF_BIN[age_bin]]
            reuses = min(MAX_PROBABILITY, math.exp(log_hazard))
            seconds, alive = (1.0 - reuses / 2.0) * AGE_WIDTHS_S[age_bin], 1.0 - reuses
            while spans and spans[-1][0] * seconds > reuses * spans[-1][1]:  # going on pays more than stopping here
                more, longer, outlive = spans.pop()
                reuses, seconds, alive = reuses + alive * more, seconds + alive * longer, alive * outlive
            spans.append((reuses, seconds, alive))
            index[age_bin] = reuses / seconds
        return index
