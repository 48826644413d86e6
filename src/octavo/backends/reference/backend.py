"""The reference backend: the table of its ops, one file per family."""

# ruff: noqa: D102 - the contract, octavo.backends.base, documents the methods

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from octavo.backends.base import Batch, DecoderStack, Float32, Int32, KVCacheSpec, SampleOutput, SamplingBatch
from octavo.backends.host_memory import free_host_memory_bytes
from octavo.backends.host_tensor import HostTensor
from octavo.backends.reference import attention, linear, norm, rotary
from octavo.backends.reference import kv_cache as memory
from octavo.backends.reference import sampling as choice
from octavo.backends.reference.kv_cache import ReferenceKVCache
from octavo.backends.reference.linear import DenseWeight

Arithmetic = Literal["float32", "native"]


class ReferenceBackend:
    """Numpy on the CPU. See :class:`octavo.backends.base.Backend` for what each op means.

    Args:
        arithmetic: ``float32`` computes everything so. ``native`` rounds what the native backend rounds (activations
            that meet quantised weights, keys and values), to show what that alone costs; the order of sums is numpy's.
    """

    name = "reference"
    device = "cpu"

    def __init__(self, arithmetic: Arithmetic = "float32") -> None:
        self.arithmetic = arithmetic
        self.default_kv_cache_dtype = "float32" if arithmetic == "float32" else "bfloat16"

    # ---- memory -----------------------------------------------------------------------------------------------

    def from_host(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array

    def to_host(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array

    def prepare_weight(self, tensors: Sequence[HostTensor]) -> DenseWeight:
        return linear.prepare_weight(tensors)

    def free_memory_bytes(self) -> int:
        """Of the machine."""
        return free_host_memory_bytes()

    def allocate_kv_cache(self, spec: KVCacheSpec) -> ReferenceKVCache:
        return memory.allocate_kv_cache(spec)

    def copy_blocks(self, kv_cache: ReferenceKVCache, source: Int32, target: Int32) -> None:
        memory.copy_blocks(kv_cache, source, target)

    def synchronize(self) -> None:
        """Nothing runs on after an op returns."""

    def fuse_decoder(self, stack: DecoderStack) -> None:
        return None

    # ---- ops --------------------------------------------------------------------------------------------------

    def embedding(self, weight: DenseWeight, input_ids: Int32) -> Float32:
        return linear.embedding(weight, input_ids)

    def linear(self, x: Float32, weight: DenseWeight, bias: Float32 | None = None) -> Float32:
        product = linear.linear if self.arithmetic == "float32" else linear.linear_of_whole_numbers
        return product(x, weight, bias)

    def rms_norm(self, x: Float32, weight: Float32, epsilon: float) -> Float32:
        return norm.rms_norm(x, weight, epsilon)

    def add_rms_norm(self, x: Float32, residual: Float32, weight: Float32, epsilon: float) -> Float32:
        return norm.add_rms_norm(x, residual, weight, epsilon)

    def rotary_embedding(self, q: Float32, k: Float32, positions: Int32, cos_sin: Float32) -> None:
        rotary.rotate_in_place(q, positions, cos_sin)
        rotary.rotate_in_place(k, positions, cos_sin)

    def act_and_mul(self, x: Float32) -> Float32:
        return linear.act_and_mul(x)

    def reshape_and_cache(
        self, k: Float32, v: Float32, kv_cache: ReferenceKVCache, layer: int, slot_mapping: Int32
    ) -> None:
        memory.reshape_and_cache(k, v, kv_cache, layer, slot_mapping)

    def paged_attention(
        self,
        q: Float32,
        kv_cache: ReferenceKVCache,
        layer: int,
        batch: Batch,
        scale: float,
        sliding_window: int | None = None,
    ) -> Float32:
        return attention.paged_attention(q, kv_cache, layer, batch, scale, sliding_window)

    def take_rows(self, x: Float32, rows: Int32) -> Float32:
        return np.take(x, rows, axis=0)

    def sample(self, logits: Float32, sampling: SamplingBatch) -> SampleOutput:
        return choice.sample(logits, sampling)

    def logprobs(self, logits: Float32, token_ids: Int32, num_logprobs: int) -> SampleOutput:
        return choice.log_probabilities(logits, token_ids, num_logprobs)
