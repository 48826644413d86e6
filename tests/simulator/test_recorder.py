"""Percentiles, intervals, service levels."""

from __future__ import annotations

import math
import random

import pytest

from octavo.simulator.recorder import MAX_INTERVALS, Histogram, ServiceLevel, Timeline
from octavo.simulator.report import Distribution


def test_percentiles_of_a_histogram_are_within_a_percent() -> None:
    draw, histogram, values = random.Random(1), Histogram(), []
    for _ in range(3000):
        value, count = draw.lognormvariate(-4, 1), draw.randint(1, 5)
        histogram.add(value, count)
        values += [value] * count
    exact = Distribution.of(values)
    found = Distribution.of_histogram(histogram)
    for name in ("mean", "p50", "p90", "p95", "p99"):
        assert getattr(found, name) == pytest.approx(getattr(exact, name), rel=0.01)
    assert histogram.count == len(values)


def test_rising_values_are_counted_like_single_ones() -> None:
    for step in (0.0, 1e-7, 1e-3):
        one_by_one, at_once = Histogram(), Histogram()
        for number in range(200):
            one_by_one.add(0.01 + step * number, 3)
        at_once.add_rising(0.01, step, 200, 3)
        assert at_once._counts == one_by_one._counts


def test_percentiles_by_nearest_rank() -> None:
    assert Distribution.of([4.0, 1.0, 3.0, 2.0]) == Distribution(2.5, 2.0, 4.0, 4.0, 4.0)
    assert math.isnan(Distribution.of([]).p50)


def test_a_timeline_integrates() -> None:
    timeline = Timeline(2, interval_s=1.0)
    timeline.add(0.5, 2.25, 4, 1)
    timeline.add(2.25, 3.0, 8, 0)
    assert timeline.means(0)[:3] == pytest.approx([2.0, 4.0, 1.0 + 6.0])
    assert timeline.means(1)[:3] == pytest.approx([0.5, 1.0, 0.25])


def test_a_long_timeline_gets_coarser_and_keeps_its_integral() -> None:
    timeline = Timeline(1, interval_s=1.0)
    for number in range(5000):
        timeline.add(number, number + 1, number % 7)
    assert len(timeline.integrals) <= MAX_INTERVALS
    assert timeline.interval_s == 16.0
    assert sum(row[0] for row in timeline.integrals) == pytest.approx(sum(number % 7 for number in range(5000)))


def test_a_service_level_needs_both() -> None:
    level = ServiceLevel(1.0, 0.05)
    assert level.is_met(1.0, 0.05)
    assert not level.is_met(1.1, 0.01)
    assert not level.is_met(0.1, 0.06)
