"""The torch backend: the table of its ops."""

# ruff: noqa: D102 - the contract, octavo.backends.base, documents the methods

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from octavo.backends.base import Batch, DecoderStack, Int32, KVCacheSpec, SampleOutput, SamplingBatch
from octavo.backends.host_memory import free_host_memory_bytes
from octavo.backends.host_tensor import HostTensor
from octavo.backends.torch import attention
from octavo.backends.torch import kv_cache as memory
from octavo.backends.torch import sampling as choice
from octavo.backends.torch.attention import AttentionPlan
from octavo.backends.torch.kv_cache import TorchKVCache
from octavo.errors import BackendError


class TorchBackend:
    """PyTorch on ``device``. See :class:`octavo.backends.base.Backend` for what each op means.

    Weights are dequantised when they are prepared. On the CPU all is float32; on a GPU weights, the inputs and results
    of matrix products, keys and values are bfloat16.

    Args:
        device: ``cpu``, ``cuda``, ``cuda:1`` …; ``auto`` takes a GPU if there is one.
    """

    name = "torch"

    def __init__(self, device: str = "auto") -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self._device = torch.empty(0, device=device).device
        except (RuntimeError, AssertionError) as error:
            raise BackendError(f"PyTorch cannot use device {device}: {error}; try device cpu") from error
        self.device = str(self._device)
        on_cpu = self._device.type == "cpu"
        self.weight_dtype = torch.float32 if on_cpu else torch.bfloat16
        self.default_kv_cache_dtype = "float32" if on_cpu else "bfloat16"
        self._plan: AttentionPlan | None = None
        """Of the batch in progress: its layers share it."""

    # ---- memory -----------------------------------------------------------------------------------------------

    def from_host(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.tensor(array, device=self._device)

    def to_host(self, array: torch.Tensor) -> npt.NDArray[Any]:
        host: npt.NDArray[Any] = array.cpu().numpy()
        return host

    def prepare_weight(self, tensors: Sequence[HostTensor]) -> torch.Tensor:
        num_rows = sum(tensor.shape[0] for tensor in tensors)
        weight = torch.empty((num_rows, tensors[0].shape[1]), dtype=self.weight_dtype, device=self._device)
        sections = torch.split(weight, [tensor.shape[0] for tensor in tensors])
        for section, tensor in zip(sections, tensors, strict=True):
            section.copy_(torch.from_numpy(tensor.dequantize()))
        return weight

    def free_memory_bytes(self) -> int:
        """Of the GPU, or of the machine."""
        if self._device.type == "cuda":
            return int(torch.cuda.mem_get_info(self._device)[0])
        return free_host_memory_bytes()

    def allocate_kv_cache(self, spec: KVCacheSpec) -> TorchKVCache:
        return memory.allocate_kv_cache(spec, self._device)

    def copy_blocks(self, kv_cache: TorchKVCache, source: Int32, target: Int32) -> None:
        source_ids, target_ids = (self.from_host(ids.astype(np.int64)) for ids in (source, target))
        memory.copy_blocks(kv_cache, source_ids, target_ids)

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def fuse_decoder(self, stack: DecoderStack) -> None:
        return None

    # ---- ops --------------------------------------------------------------------------------------------------

    def embedding(self, weight: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        return weight[input_ids].float()

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        product = torch.nn.functional.linear(x.to(weight.dtype), weight).float()
        return product if bias is None else product + bias

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + epsilon) * weight

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> torch.Tensor:
        return self.rms_norm(residual.add_(x), weight, epsilon)

    def rotary_embedding(
        self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
    ) -> None:
        half = cos_sin.shape[-1] // 2
        cos, sin = cos_sin[positions][:, None, :].chunk(2, dim=-1)  # [T, 1, half]: the same for all heads
        for x in (q, k):
            first, second = x[..., :half].clone(), x[..., half : 2 * half].clone()
            x[..., :half] = first * cos - second * sin
            x[..., half : 2 * half] = second * cos + first * sin

    def act_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        gates, values = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gates) * values

    def reshape_and_cache(
        self, k: torch.Tensor, v: torch.Tensor, kv_cache: TorchKVCache, layer: int, slot_mapping: torch.Tensor
    ) -> None:
        memory.reshape_and_cache(k, v, kv_cache, layer, slot_mapping)

    def paged_attention(
        self,
        q: torch.Tensor,
        kv_cache: TorchKVCache,
        layer: int,
        batch: Batch,
        scale: float,
        sliding_window: int | None = None,
    ) -> torch.Tensor:
        block_size = kv_cache.spec.block_size
        if self._plan is None or not self._plan.fits(batch, block_size, sliding_window):
            self._plan = attention.make_plan(batch, block_size, sliding_window)
        return attention.paged_attention(q, kv_cache, layer, self._plan, scale)

    def take_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x[rows]

    def sample(self, logits: torch.Tensor, sampling: SamplingBatch) -> SampleOutput:
        return choice.sample(logits, sampling)

    def logprobs(self, logits: torch.Tensor, token_ids: Int32, num_logprobs: int) -> SampleOutput:
        return choice.log_probabilities(logits, token_ids, num_logprobs)
