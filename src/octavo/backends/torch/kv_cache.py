"""The pool's memory as two tensors, and its writers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo.backends.base import KVCacheSpec


@dataclass(frozen=True, slots=True)
class TorchKVCache:
    """Keys and values of every slot.

    Attributes:
        keys: [layers, blocks * block_size, num_kv_heads, head_dim] of ``spec.dtype``.
        values: the same shape.
    """

    spec: KVCacheSpec
    keys: torch.Tensor
    values: torch.Tensor


def allocate_kv_cache(spec: KVCacheSpec, device: torch.device) -> TorchKVCache:
    """Zeros of the spec's type."""
    shape = (spec.num_layers, spec.num_blocks * spec.block_size, spec.num_kv_heads, spec.head_dim)
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[spec.dtype]
    keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
    return TorchKVCache(spec, keys, values)


def reshape_and_cache(
    k: torch.Tensor, v: torch.Tensor, kv_cache: TorchKVCache, layer: int, slot_mapping: torch.Tensor
) -> None:
    """Write k and v [T, num_kv_heads, head_dim] to their slots."""
    kv_cache.keys[layer].index_copy_(0, slot_mapping.long(), k.to(kv_cache.keys.dtype))
    kv_cache.values[layer].index_copy_(0, slot_mapping.long(), v.to(kv_cache.values.dtype))


def copy_blocks(kv_cache: TorchKVCache, source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy whole blocks over all layers; source and target are int64 block ids."""
    for slots in (kv_cache.keys, kv_cache.values):
        blocks = torch.unflatten(slots, 1, (kv_cache.spec.num_blocks, kv_cache.spec.block_size))
        blocks[:, target] = blocks[:, source]
