"""What the architectures have in common: reading their tensors, rotary tables, attention, the gated MLP.

Layers hold weights in the backend's memory and are called with the backend; they know nothing else of it.
Shapes: ``T`` new tokens of the batch, ``H`` the hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from octavo.backends.base import Array, Backend, Batch, Float32, HostTensor, KVCache, Weight
from octavo.models.config import ModelConfig
from octavo.models.rope_config import RopeConfig


@dataclass(frozen=True, slots=True)
class CheckpointSection:
    """The tensors of a checkpoint whose names begin alike, on their way into a backend."""

    tensors: Mapping[str, HostTensor]
    backend: Backend
    prefix: str = ""

    def section(self, name: str) -> CheckpointSection:
        """The part below ``name``, as in ``model.layers.0``."""
        return CheckpointSection(self.tensors, self.backend, f"{self.prefix}{name}.")

    def matrix(self, *names: str) -> Weight:
        """The matrices of these modules, stacked along their rows into one weight."""
        return self.backend.prepare_weight([self.tensors[f"{self.prefix}{name}.weight"] for name in names])

    def vector(self, *names: str) -> Array:
        """These vectors end to end, float32."""
        return self.backend.from_host(
            np.concatenate([self.tensors[f"{self.prefix}{name}"].dequantize() for name in names])
        )


def rotary_table(rope: RopeConfig, num_positions: int) -> Float32:
    """Cosines, then sines, of every position's angles: float32 [num_positions, rotary_dim].

    Angles are float64 until the end: at position 100,000 a float32 angle is off by hundredths of a radian.
    """
    angles = np.outer(np.arange(num_positions, dtype=np.float64), rope.inverse_frequencies())
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * rope.attention_factor
    return table.astype(np.float32)


class Attention:
    """Grouped-query attention over the paged KV cache, with rotary positions.

    Args:
        section: holds ``q_proj``, ``k_proj``, ``v_proj``, ``o_proj`` and what the options name.
        layer: whose keys and values these are in the cache.
        cos_sin: the table of :func:`rotary_table`, in the backend's memory.
        bias: q, k and v have biases.
        head_norm: each head of q and k passes an RMS norm before it rotates.
        sliding_window: tokens that a token sees, itself included; ``None``: all before it.
    """

    def __init__(
        self,
        section: CheckpointSection,
        config: ModelConfig,
        layer: int,
        cos_sin: Array,
        *,
        bias: bool = False,
        head_norm: bool = False,
        sliding_window: int | None = None,
    ) -> None:
        self.layer = layer
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.epsilon = config.rms_norm_eps
        self.cos_sin = cos_sin
        self.sliding_window = sliding_window
        self.qkv_proj = section.matrix("q_proj", "k_proj", "v_proj")
        self.qkv_bias = section.vector("q_proj.bias", "k_proj.bias", "v_proj.bias") if bias else None
        self.o_proj = section.matrix("o_proj")
        self.q_norm = section.vector("q_norm.weight") if head_norm else None
        self.k_norm = section.vector("k_norm.weight") if head_norm else None

    def __call__(self, backend: Backend, x: Array, batch: Batch, kv_cache: KVCache) -> Array:
        """x [T, H] → [T, H]."""
        qkv = backend.linear(x, self.qkv_proj, self.qkv_bias)
        k_start = self.num_heads * self.head_dim
        v_start = k_start + self.num_kv_heads * self.head_dim
        q = qkv[:, :k_start].reshape(batch.num_tokens, self.num_heads, self.head_dim)
        k = qkv[:, k_start:v_start].reshape(batch.num_tokens, self.num_kv_heads, self.head_dim)
        v = qkv[:, v_start:].reshape(batch.num_tokens, self.num_kv_heads, self.head_dim)
        if self.q_norm is not None:
            q = backend.rms_norm(q, self.q_norm, self.epsilon)
            k = backend.rms_norm(k, self.k_norm, self.epsilon)
        backend.rotary_embedding(q, k, batch.positions, self.cos_sin)
        backend.reshape_and_cache(k, v, kv_cache, self.layer, batch.slot_mapping)
        mixed = backend.paged_attention(
            q, kv_cache, self.layer, batch, scale=self.head_dim**-0.5, sliding_window=self.sliding_window
        )
        return backend.linear(mixed, self.o_proj)


class GatedMLP:
    """``down(silu(gate(x)) * up(x))`` (SwiGLU: Shazeer, 2020)."""

    def __init__(self, section: CheckpointSection) -> None:
        self.gate_up_proj = section.matrix("gate_proj", "up_proj")
        self.down_proj = section.matrix("down_proj")

    def __call__(self, backend: Backend, x: Array) -> Array:
        """x [T, H] → [T, H]."""
        return backend.linear(backend.act_and_mul(backend.linear(x, self.gate_up_proj)), self.down_proj)
