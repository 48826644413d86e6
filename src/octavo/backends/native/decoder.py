"""All decoder layers in one native call: what one Python call per op costs is a millisecond per step."""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Batch, DecoderStack, Float32
from octavo.backends.native import _native


class NativeDecoder:
    """A :class:`octavo.backends.base.DecoderStack` as one op. Its bits are those of the plain ops."""

    def __init__(self, runtime: _native.Runtime, stack: DecoderStack) -> None:
        self._runtime = runtime
        self._stack = stack  # keeps alive what the native object points to
        layers = [
            (
                layer.qkv_proj,
                layer.o_proj,
                layer.gate_up_proj,
                layer.down_proj,
                layer.input_layernorm,
                layer.post_attention_layernorm,
                layer.qkv_bias,
                layer.q_norm,
                layer.k_norm,
                layer.sliding_window or 0,
            )
            for layer in stack.layers
        ]
        self._decoder = _native.Decoder(
            stack.embed_tokens,
            layers,
            stack.norm,
            stack.cos_sin,
            stack.num_heads,
            stack.num_kv_heads,
            stack.head_dim,
            stack.epsilon,
            stack.head_dim**-0.5,
        )

    def __call__(self, batch: Batch, kv_cache: _native.KVCache) -> Float32:
        """One pass → hidden states after the last norm, float32 [T, H]."""
        out = np.empty((batch.num_tokens, self._stack.embed_tokens.num_columns), np.float32)
        self._decoder.forward(
            self._runtime,
            batch.input_ids,
            batch.positions,
            batch.slot_mapping,
            batch.query_start_loc,
            batch.seq_lens,
            batch.block_tables,
            kv_cache,
            out,
        )
        return out
