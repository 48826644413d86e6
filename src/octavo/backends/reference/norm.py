"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Float32


def rms_norm(x: Float32, weight: Float32, epsilon: float) -> Float32:
    """x [..., H], weight [H] → ``x / sqrt(mean(x²) + epsilon) * weight``."""
    mean_of_squares = np.mean(np.square(x), axis=-1, keepdims=True)
    normalized: Float32 = x / np.sqrt(mean_of_squares + np.float32(epsilon)) * weight
    return normalized


def add_rms_norm(x: Float32, residual: Float32, weight: Float32, epsilon: float) -> Float32:
    """``residual += x`` in place, then its norm. Both [T, H]."""
    residual += x
    return rms_norm(residual, weight, epsilon)
