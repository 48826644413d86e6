"""Rounding of activations to whole numbers of 16 bits: what a product with quantised weights multiplies."""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Float32

GROUP = 32
"""Neighbouring elements that share a step."""

LARGEST = np.float32(32767)
SMALLEST = np.float32(2.0**-100)
"""A group that stays below is zero: its step, or what undoes it, would leave the range of float32."""


def round_to_whole(x: Float32) -> Float32:
    """x [..., K] → the nearest ``step * q`` of each element, q a whole number of 16 bits, still held as float32.

    The step of 32 neighbours is their largest magnitude ÷ 32767. A group with an infinity or a NaN becomes NaN.
    """
    columns = x.shape[-1]
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -columns % GROUP)])
    groups = padded.reshape(*x.shape[:-1], -1, GROUP)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        steps = np.where(largest < SMALLEST, np.float32(0), largest / LARGEST)
        factors = np.where(largest < SMALLEST, np.float32(0), LARGEST / largest)
        rounded = np.where(np.isfinite(largest), np.rint(groups * factors) * steps, np.float32(np.nan))
    result: Float32 = rounded.reshape(padded.shape)[..., :columns].astype(np.float32)
    return result
