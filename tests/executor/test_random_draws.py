"""Draws are a function of (seed, position) that will not change, even, and independent."""

from __future__ import annotations

import numpy as np

from octavo.executor.random_draws import uniform_draws

MASK = 2**64 - 1
KNOWN = {
    0: [0.2817612886428833, 0.6524484753608704, 0.7012121081352234],
    42: [0.09832578897476196, 0.6952598094940186, 0.8461872935295105],
    -1: [0.2668471336364746, 0.36624205112457275, 0.7408050298690796],
}


def draws(seed: int, positions: range) -> np.ndarray:
    return uniform_draws(np.full(len(positions), seed % 2**64, np.uint64), np.array(positions, np.int32))


def slow_draw(seed: int, position: int) -> float:
    """SplitMix64's finaliser in Python's own integers."""

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    gamma = 0x9E3779B97F4A7C15
    return (mix((mix((seed + gamma) & MASK) + position * gamma) & MASK) >> 40) * 2.0**-24


def test_known_values() -> None:
    """Seeds that somebody wrote down must go on giving the same answers."""
    assert draws(0, range(3)).tolist() == KNOWN[0]
    assert draws(42, range(1000, 1003)).tolist() == KNOWN[42]
    assert draws(-1, range(3)).tolist() == KNOWN[-1]


def test_equal_to_the_slow_twin() -> None:
    for seed in (0, 1, 2**63, MASK, 123456789):
        expected = [slow_draw(seed, position) for position in range(200)]
        assert draws(seed, range(200)).tolist() == expected


def test_type_and_range() -> None:
    found = draws(7, range(100_000))
    assert found.dtype == np.float32
    assert found.min() >= 0
    assert found.max() < 1


def test_uniform_over_positions_and_over_seeds() -> None:
    """Chi-squared of 100 bins: 99 ± 14; 170 is five deviations off."""
    by_position = draws(5, range(100_000))
    by_seed = uniform_draws(np.arange(100_000, dtype=np.uint64), np.full(100_000, 17, np.int32))
    for found in (by_position, by_seed):
        counts = np.histogram(found, bins=100, range=(0, 1))[0]
        assert ((counts - 1000.0) ** 2 / 1000).sum() < 170
        assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.016


def test_samples_of_one_request_are_independent() -> None:
    """They have neighbouring seeds; position by position their draws must not resemble each other."""
    first, second = draws(1000, range(50_000)), draws(1001, range(50_000))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.023
    assert abs(np.corrcoef(first[1:], second[:-1])[0, 1]) < 0.023


def test_a_draw_does_not_depend_on_its_batch() -> None:
    seeds = np.arange(64, dtype=np.uint64) * np.uint64(10**15)
    positions = np.arange(64, dtype=np.int32)[::-1].copy()
    together = uniform_draws(seeds, positions)
    for row in range(64):
        assert uniform_draws(seeds[row : row + 1], positions[row : row + 1])[0] == together[row]
