"""What a simulation remembers: a row per request, gaps between tokens as a histogram, the fleet's state over time."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from dataclasses import dataclass

from octavo.request import Request

BINS_PER_E = 100
"""Bins of the histogram for each factor e: percentiles are off by half a percent at most."""
MAX_INTERVALS = 512
"""Intervals of the timeline; when they are used up, neighbours merge."""


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """What a user expects of an answer.

    Attributes:
        ttft_s: the first token comes within this time.
        tpot_s: from then on, a token each ``tpot_s`` on average.
    """

    ttft_s: float
    tpot_s: float

    def is_met(self, ttft_s: float, tpot_s: float) -> bool:
        """Whether an answer is as expected."""
        return ttft_s <= self.ttft_s and tpot_s <= self.tpot_s


class Histogram:
    """Weighted positive numbers in geometric bins."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, value: float, count: int) -> None:
        """Count ``value`` so many times."""
        bin_ = _bin(value)
        self._counts[bin_] = self._counts.get(bin_, 0) + count

    def add_rising(self, first: float, step: float, num_values: int, count: int) -> None:
        """Count ``first``, ``first + step`` … each ``count`` times."""
        numbers, start = range(num_values), 0
        while start < num_values:
            bin_ = _bin(first + step * start)
            end = num_values
            if _bin(first + step * (num_values - 1)) > bin_:
                end = bisect_right(numbers, bin_, start, key=lambda number: _bin(first + step * number))
            self._counts[bin_] = self._counts.get(bin_, 0) + count * (end - start)
            start = end

    def percentile(self, percent: float) -> float:
        """The middle of the bin where it falls; NaN if nothing was counted."""
        rank = percent / 100 * self.count
        seen = 0
        for bin_ in sorted(self._counts):
            seen += self._counts[bin_]
            if seen >= rank:
                return math.exp((bin_ + 0.5) / BINS_PER_E)
        return math.nan

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self._counts.values())

    @property
    def mean(self) -> float:
        """Mean, by the middles of the bins; NaN if nothing was counted."""
        weighted = sum(count * math.exp((bin_ + 0.5) / BINS_PER_E) for bin_, count in self._counts.items())
        return weighted / self.count if self.count else math.nan


def _bin(value: float) -> int:
    return math.floor(BINS_PER_E * math.log(value))


class Timeline:
    """Time integrals of a few quantities over equal intervals, which double when there are too many.

    Attributes:
        interval_s: length of an interval.
        integrals: one row per interval, one column per quantity, value × seconds.
    """

    def __init__(self, num_quantities: int, interval_s: float = 1.0) -> None:
        self.interval_s = interval_s
        self.integrals: list[list[float]] = []
        self._num_quantities = num_quantities

    def add(self, start_s: float, end_s: float, *values: float) -> None:
        """The quantities were ``values`` from ``start_s`` to ``end_s``."""
        while end_s >= self.interval_s * MAX_INTERVALS:
            self._merge()
        first, last = int(start_s / self.interval_s), int(end_s / self.interval_s)
        while len(self.integrals) <= last:
            self.integrals.append([0.0] * self._num_quantities)
        if first == last:
            duration_s = end_s - start_s
            self.integrals[last] = [
                total + value * duration_s for total, value in zip(self.integrals[last], values, strict=True)
            ]
            return
        for index in range(first, last + 1):
            low, high = index * self.interval_s, (index + 1) * self.interval_s
            duration_s = min(end_s, high) - max(start_s, low)
            row = self.integrals[index]
            for column, value in enumerate(values):
                row[column] += value * duration_s

    def means(self, column: int) -> list[float]:
        """Mean of a quantity in each interval."""
        return [row[column] / self.interval_s for row in self.integrals]

    def _merge(self) -> None:
        rows = self.integrals + [[0.0] * self._num_quantities] * (len(self.integrals) % 2)
        pairs = zip(rows[::2], rows[1::2], strict=True)
        self.integrals = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]
        self.interval_s *= 2


class Recorder:
    """Listens to all replicas of a fleet.

    Attributes:
        arrival_s, ttft_s, e2e_s, tpot_s: one entry per finished request; a one-token answer has no ``tpot_s`` (0).
        num_prompt_tokens, num_cached_tokens, num_output_tokens, num_preemptions, num_recomputed_tokens: the same.
        replica: which one served it.
        itl_s: gaps between consecutive tokens of a request.
        timeline: blocks held, requests running, requests waiting, seconds busy; summed over the replicas.
        num_missed: finished requests that were worse than ``service_level``.
        refused: ids of requests that could never fit.
    """

    def __init__(self, service_level: ServiceLevel) -> None:
        self.service_level = service_level
        self.arrival_s, self.ttft_s, self.e2e_s, self.tpot_s = (array("d") for _ in range(4))
        self.num_prompt_tokens, self.num_cached_tokens, self.num_output_tokens = (array("q") for _ in range(3))
        self.num_preemptions, self.num_recomputed_tokens, self.replica = (array("q") for _ in range(3))
        self.itl_s = Histogram()
        self.timeline = Timeline(4)
        self.num_missed = 0
        self.refused: list[str] = []

    def finish(self, request: Request, replica: int, first_token_s: float, now_s: float) -> None:
        """A request got its last token."""
        ttft_s, e2e_s = first_token_s - request.arrival_s, now_s - request.arrival_s
        num_output = request.num_output_tokens
        tpot_s = (now_s - first_token_s) / (num_output - 1) if num_output > 1 else 0.0
        self.arrival_s.append(request.arrival_s)
        self.ttft_s.append(ttft_s)
        self.e2e_s.append(e2e_s)
        self.tpot_s.append(tpot_s)
        self.num_prompt_tokens.append(request.num_prompt_tokens)
        self.num_cached_tokens.append(request.num_cached_tokens)
        self.num_output_tokens.append(num_output)
        self.num_preemptions.append(request.num_preemptions)
        self.num_recomputed_tokens.append(request.num_recomputed_tokens)
        self.replica.append(replica)
        if not self.service_level.is_met(ttft_s, tpot_s):
            self.num_missed += 1
