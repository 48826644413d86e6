"""The native backend: the table of its ops. Each hands its arrays to C++, which checks them and lets go of the GIL."""

# ruff: noqa: D102 - the contract, octavo.backends.base, documents the methods

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.backends.base import (
    Batch,
    DecoderStack,
    Float32,
    FusedDecoder,
    Int32,
    KVCacheSpec,
    SampleOutput,
    SamplingBatch,
)
from octavo.backends.host_memory import free_host_memory_bytes
from octavo.backends.host_tensor import HostTensor
from octavo.backends.native import _native
from octavo.backends.native.cpu_plan import CpuPlan, cpu_plan
from octavo.backends.native.decoder import NativeDecoder
from octavo.errors import BackendError


class NativeBackend:
    """C++ kernels on the CPU. See :class:`octavo.backends.base.Backend` for what each op means.

    Results do not depend on the number of threads, on the instruction set, or on what else is in the batch: the
    arithmetic is fixed down to the order of additions (``csrc/kernels/packed_matrix.h`` and ``attention.cc`` say how).

    Attributes:
        plan: what was decided about the machine.
        runtime: the native object behind the ops, which also measures the machine's limits.

    Args:
        num_threads: threads that compute; ``None``: what affinity and cgroup quota allow.

    Raises:
        BackendError: ``OCTAVO_ISA`` asks for an instruction set that this machine lacks.
    """

    name = "native"
    device = "cpu"
    default_kv_cache_dtype = "bfloat16"

    def __init__(self, num_threads: int | None = None) -> None:
        self.plan: CpuPlan = cpu_plan()
        self.num_threads = self.plan.num_threads if num_threads is None else num_threads
        self.runtime = _native.Runtime(self.plan.isa, self.num_threads)

    # ---- memory -----------------------------------------------------------------------------------------------

    def from_host(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array

    def to_host(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array

    def prepare_weight(self, tensors: Sequence[HostTensor]) -> _native.Weight:
        matrices = []
        for tensor in tensors:
            if len(tensor.shape) != 2:
                raise BackendError(f"{tensor.name}: a weight has two dimensions, not {list(tensor.shape)}")
            matrices.append((tensor.type.label, tensor.shape[0], tensor.shape[1], tensor.data))
        return _native.Weight(self.runtime, matrices)

    def free_memory_bytes(self) -> int:
        return free_host_memory_bytes()

    def allocate_kv_cache(self, spec: KVCacheSpec) -> _native.KVCache:
        return _native.KVCache(
            spec.num_layers, spec.num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim, spec.dtype
        )

    def copy_blocks(self, kv_cache: _native.KVCache, source: Int32, target: Int32) -> None:
        kv_cache.copy_blocks(source, target)

    def synchronize(self) -> None:
        """Nothing runs on after an op returns."""

    def fuse_decoder(self, stack: DecoderStack) -> FusedDecoder:
        return NativeDecoder(self.runtime, stack)

    # ---- ops --------------------------------------------------------------------------------------------------

    def embedding(self, weight: _native.Weight, input_ids: Int32) -> Float32:
        out = np.empty((len(input_ids), weight.num_columns), np.float32)
        self.runtime.embedding(weight, input_ids, out)
        return out

    def linear(self, x: Float32, weight: _native.Weight, bias: Float32 | None = None) -> Float32:
        out = np.empty((len(x), weight.num_features), np.float32)
        self.runtime.linear(x, weight, bias, out)
        return out

    def rms_norm(self, x: Float32, weight: Float32, epsilon: float) -> Float32:
        out = np.empty(x.shape, np.float32)
        if x.ndim == 2:
            self.runtime.rms_norm(x[:, np.newaxis], weight, epsilon, out[:, np.newaxis])
        else:
            self.runtime.rms_norm(x, weight, epsilon, out)
        return out

    def add_rms_norm(self, x: Float32, residual: Float32, weight: Float32, epsilon: float) -> Float32:
        out = np.empty(x.shape, np.float32)
        self.runtime.add_rms_norm(x, residual, weight, epsilon, out)
        return out

    def rotary_embedding(self, q: Float32, k: Float32, positions: Int32, cos_sin: Float32) -> None:
        self.runtime.rotary_embedding(q, k, positions, cos_sin)

    def act_and_mul(self, x: Float32) -> Float32:
        out = np.empty((x.shape[0], x.shape[1] // 2), np.float32)
        self.runtime.act_and_mul(x, out)
        return out

    def reshape_and_cache(
        self, k: Float32, v: Float32, kv_cache: _native.KVCache, layer: int, slot_mapping: Int32
    ) -> None:
        self.runtime.reshape_and_cache(k, v, kv_cache, layer, slot_mapping)

    def paged_attention(
        self,
        q: Float32,
        kv_cache: _native.KVCache,
        layer: int,
        batch: Batch,
        scale: float,
        sliding_window: int | None = None,
    ) -> Float32:
        out = np.empty((q.shape[0], q.shape[1] * q.shape[2]), np.float32)
        self.runtime.paged_attention(
            q,
            kv_cache,
            layer,
            batch.positions,
            batch.query_start_loc,
            batch.seq_lens,
            batch.block_tables,
            scale,
            sliding_window or 0,
            out,
        )
        return out

    def take_rows(self, x: Float32, rows: Int32) -> Float32:
        taken: Float32 = x[rows]
        return taken

    def sample(self, logits: Float32, sampling: SamplingBatch) -> SampleOutput:
        token_ids = np.empty(len(logits), np.int32)
        self.runtime.sample(logits, sampling, token_ids)
        if sampling.num_logprobs < 0:
            return SampleOutput(token_ids)
        return self.logprobs(logits, token_ids, sampling.num_logprobs)

    def logprobs(self, logits: Float32, token_ids: Int32, num_logprobs: int) -> SampleOutput:
        count = min(num_logprobs, logits.shape[1])
        reported = np.empty((len(logits), 1 + count), np.int32)
        logprobs = np.empty(reported.shape, np.float32)
        ranks = np.empty(len(logits), np.int32)
        self.runtime.logprobs(logits, token_ids, reported, logprobs, ranks)
        return SampleOutput(token_ids, reported, logprobs, ranks)
