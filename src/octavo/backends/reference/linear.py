"""Weights, matrix products, row look-ups and the gated activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.backends.base import Float32, Int32
from octavo.backends.host_tensor import HostTensor


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """A weight with every element spelled out: float32 [N, K]."""

    matrix: Float32


def prepare_weight(tensors: Sequence[HostTensor]) -> DenseWeight:
    """Dequantise matrices [N_i, K] and stack them along N."""
    return DenseWeight(np.concatenate([tensor.dequantize() for tensor in tensors], axis=0))


def embedding(weight: DenseWeight, input_ids: Int32) -> Float32:
    """Weight [V, H], input_ids [T] → [T, H]."""
    return weight.matrix[input_ids]


def linear(x: Float32, weight: DenseWeight, bias: Float32 | None) -> Float32:
    """x [T, K], weight [N, K], bias [N] → [T, N]."""
    product: Float32 = x @ weight.matrix.T
    return product if bias is None else product + bias


def act_and_mul(x: Float32) -> Float32:
    """x [T, 2 I]: gates, then values → ``silu(gates) * values`` [T, I], where ``silu(g) = g / (1 + exp(-g))``."""
    gates, values = np.split(x, 2, axis=-1)
    with np.errstate(over="ignore"):  # exp overflows for very negative gates, and g / inf is the 0 we want
        activated: Float32 = gates / (1 + np.exp(-gates)) * values
    return activated
