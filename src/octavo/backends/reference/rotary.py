"""Rotary position embedding (Su et al., 2021), in the "half" form: element ``i`` pairs with ``i + rotary_dim / 2``."""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Float32, Int32


def rotate_in_place(x: Float32, positions: Int32, cos_sin: Float32) -> None:
    """Turn each pair of x [T, heads, head_dim] by its token's angles; elements past ``rotary_dim`` stay.

    ``cos_sin`` is [max positions, rotary_dim]: cosines, then sines.
    """
    half = cos_sin.shape[-1] // 2
    cos, sin = np.split(cos_sin[positions][:, np.newaxis, :], 2, axis=-1)  # [T, 1, half]: the same for all heads
    first, second = x[..., :half].copy(), x[..., half : 2 * half].copy()
    x[..., :half] = first * cos - second * sin
    x[..., half : 2 * half] = second * cos + first * sin
