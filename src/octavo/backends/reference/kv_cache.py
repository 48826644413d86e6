"""The pool's memory as two plain arrays, and its writers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.backends.base import Float32, Int32, KVCacheSpec
from octavo.backends.reference.bfloat16 import round_to_bfloat16
from octavo.backends.reference.int8 import quantize_heads


@dataclass(frozen=True, slots=True)
class ReferenceKVCache:
    """Keys and values of every slot.

    Attributes:
        keys: float32 [layers, blocks, block_size, num_kv_heads, head_dim]; what ``spec.dtype`` keeps of them.
        values: the same shape.
    """

    spec: KVCacheSpec
    keys: Float32
    values: Float32


def allocate_kv_cache(spec: KVCacheSpec) -> ReferenceKVCache:
    """Zeros, whose pages the system hands out when they are first written."""
    shape = (spec.num_layers, spec.num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)
    return ReferenceKVCache(spec, np.zeros(shape, np.float32), np.zeros(shape, np.float32))


def reshape_and_cache(k: Float32, v: Float32, kv_cache: ReferenceKVCache, layer: int, slot_mapping: Int32) -> None:
    """Write k and v [T, num_kv_heads, head_dim] to their slots."""
    if kv_cache.spec.dtype == "bfloat16":
        k, v = round_to_bfloat16(k), round_to_bfloat16(v)
    elif kv_cache.spec.dtype == "int8":
        k, v = (codes * scales[..., np.newaxis] for codes, scales in map(quantize_heads, (k, v)))
    block, offset = np.divmod(slot_mapping, kv_cache.spec.block_size)
    kv_cache.keys[layer, block, offset] = k
    kv_cache.values[layer, block, offset] = v


def copy_blocks(kv_cache: ReferenceKVCache, source: Int32, target: Int32) -> None:
    """Copy whole blocks over all layers."""
    kv_cache.keys[:, target] = kv_cache.keys[:, source]
    kv_cache.values[:, target] = kv_cache.values[:, source]
