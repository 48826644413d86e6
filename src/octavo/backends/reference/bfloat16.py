"""Rounding to bfloat16: the upper half of a float32, to nearest, ties to even."""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Float32


def round_to_bfloat16(x: Float32) -> Float32:
    """The nearest bfloat16 of each element, still held as float32. NaN stays NaN, overflow becomes infinity."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    half_minus_one_or_half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + half_minus_one_or_half) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded)
