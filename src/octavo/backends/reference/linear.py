"""Weights, matrix products, row look-ups and the gated activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.backends.base import Float32, Int32
from octavo.backends.host_tensor import HostTensor
from octavo.backends.reference.whole_numbers import round_to_whole


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """A weight with every element spelled out: float32 [N, K], and which rows were quantised: bool [N]."""

    matrix: Float32
    is_quantized: npt.NDArray[np.bool_]


def prepare_weight(tensors: Sequence[HostTensor]) -> DenseWeight:
    """Dequantise matrices [N_i, K] and stack them along N."""
    matrix = np.concatenate([tensor.dequantize() for tensor in tensors], axis=0)
    is_quantized = np.repeat([tensor.type.is_quantized for tensor in tensors], [tensor.shape[0] for tensor in tensors])
    return DenseWeight(matrix, is_quantized)


def embedding(weight: DenseWeight, input_ids: Int32) -> Float32:
    """Weight [V, H], input_ids [T] → [T, H]."""
    return weight.matrix[input_ids]


def linear(x: Float32, weight: DenseWeight, bias: Float32 | None) -> Float32:
    """x [T, K], weight [N, K], bias [N] → [T, N]."""
    product: Float32 = x @ weight.matrix.T
    return product if bias is None else product + bias


def linear_of_whole_numbers(x: Float32, weight: DenseWeight, bias: Float32 | None) -> Float32:
    """The same, with activations rounded as the native backend rounds them: where the weight is quantised."""
    product = x @ weight.matrix.T
    product[:, weight.is_quantized] = round_to_whole(x) @ weight.matrix[weight.is_quantized].T
    return product if bias is None else product + bias


def act_and_mul(x: Float32) -> Float32:
    """x [T, 2 I]: gates, then values → ``silu(gates) * values`` [T, I], where ``silu(g) = g / (1 + exp(-g))``."""
    gates, values = np.split(x, 2, axis=-1)
    with np.errstate(over="ignore"):  # exp overflows for very negative gates, and g / inf is the 0 we want
        activated: Float32 = gates / (1 + np.exp(-gates)) * values
    return activated
