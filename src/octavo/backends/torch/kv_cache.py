"""The pool's memory as two tensors, and its writers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo.backends.base import KVCacheSpec

SMALLEST = 1e-30
"""As in ``octavo.backends.reference.int8``."""


@dataclass(frozen=True, slots=True)
class TorchKVCache:
    """Keys and values of every slot.

    Attributes:
        keys: [layers, blocks * block_size, num_kv_heads, head_dim] of ``spec.dtype``.
        values: the same shape.
        key_scales: float32 [layers, blocks * block_size, num_kv_heads] of an int8 cache: a key is code * scale.
        value_scales: the same shape.
    """

    spec: KVCacheSpec
    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None

    def gather(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values at these slots (int64 [N]): float32 [N, num_kv_heads, head_dim] each."""
        pairs = ((self.keys, self.key_scales), (self.values, self.value_scales))
        keys, values = (
            _scaled(stored[layer].index_select(0, slots).float(), None if scales is None else scales[layer][slots])
            for stored, scales in pairs
        )
        return keys, values


def allocate_kv_cache(spec: KVCacheSpec, device: torch.device) -> TorchKVCache:
    """Zeros of the spec's type."""
    shape = (spec.num_layers, spec.num_blocks * spec.block_size, spec.num_kv_heads, spec.head_dim)
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.int8}[spec.dtype]
    keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
    if spec.dtype != "int8":
        return TorchKVCache(spec, keys, values)
    key_scales, value_scales = (torch.zeros(shape[:-1], dtype=torch.float32, device=device) for _ in range(2))
    return TorchKVCache(spec, keys, values, key_scales, value_scales)


def reshape_and_cache(
    k: torch.Tensor, v: torch.Tensor, kv_cache: TorchKVCache, layer: int, slot_mapping: torch.Tensor
) -> None:
    """Write k and v [T, num_kv_heads, head_dim] to their slots."""
    slots = slot_mapping.long()
    keys, values = (k, kv_cache.keys, kv_cache.key_scales), (v, kv_cache.values, kv_cache.value_scales)
    for x, stored, scales in (keys, values):
        codes = x
        if scales is not None:
            codes, new_scales = quantize_heads(x)
            scales[layer].index_copy_(0, slots, new_scales)
        stored[layer].index_copy_(0, slots, codes.to(stored.dtype))


def quantize_heads(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, heads, head_dim] → int8 codes, scales [T, heads], as ``octavo.backends.reference.int8`` defines them."""
    largest = x.abs().amax(dim=-1)
    is_finite = torch.isfinite(x).all(dim=-1)
    is_used = is_finite & (largest >= SMALLEST)
    scales = torch.where(is_used, largest / 127, torch.where(is_finite, 0.0, torch.nan))
    inverses = 127 / torch.where(is_used, largest, 1.0)
    codes = torch.round(torch.where(is_used[..., None], x, 0.0) * inverses[..., None])
    return codes.to(torch.int8), scales


def _scaled(x: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    return x if scales is None else x * scales[..., None]


def copy_blocks(kv_cache: TorchKVCache, source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy whole blocks over all layers; source and target are int64 block ids."""
    for slots in (kv_cache.keys, kv_cache.values, kv_cache.key_scales, kv_cache.value_scales):
        if slots is None:
            continue
        blocks = torch.unflatten(slots, 1, (kv_cache.spec.num_blocks, kv_cache.spec.block_size))
        blocks[:, target] = blocks[:, source]
