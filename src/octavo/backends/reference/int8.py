"""Keys and values as int8: a code per element, a scale per token and head."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.backends.base import Float32

SMALLEST = np.float32(1e-30)
"""A head whose elements are all smaller is all zeros: their inverse would overflow."""


def quantize_heads(x: Float32) -> tuple[npt.NDArray[np.int8], Float32]:
    """x [T, heads, head_dim] → codes of -127 … 127, the same shape, and scales [T, heads]; ``codes * scales ≈ x``.

    A head that holds anything but finite numbers gets a scale of NaN.
    """
    largest = np.abs(x).max(axis=-1)
    is_finite = np.isfinite(x).all(axis=-1)
    is_used = is_finite & (largest >= SMALLEST)
    scales = np.where(is_used, largest / np.float32(127), np.where(is_finite, np.float32(0), np.float32(np.nan)))
    inverses = np.float32(127) / np.where(is_used, largest, np.float32(1))
    products = np.where(is_used[..., np.newaxis], x, np.float32(0)) * inverses[..., np.newaxis]
    return np.rint(products).astype(np.int8), scales
