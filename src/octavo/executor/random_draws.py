"""Random numbers that depend on (seed, position) and on nothing else.

A counter-based generator: the draw is a hash of its coordinates, so it is the same alone or in a batch, before or after
preemption. The hash is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
generators", 2014), applied once to the seed and once more after the position is mixed in.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniform_draws(seeds: UInt64, positions: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
    """One draw in [0, 1) per (seed, position): 24 random bits as float32. Arrays of one shape."""
    with np.errstate(over="ignore"):
        state = _mix(seeds + _GOLDEN_GAMMA) + positions.astype(np.uint64) * _GOLDEN_GAMMA
        bits = _mix(state) >> np.uint64(40)
    return bits.astype(np.float32) * np.float32(2.0**-24)


def _mix(z: UInt64) -> UInt64:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
