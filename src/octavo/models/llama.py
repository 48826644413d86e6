"""Llama 2 and 3 (Touvron et al., 2023; Grattafiori et al., 2024), and models of their shape, such as SmolLM2.

    embed_tokens ─┬→ input_layernorm → self_attn ─(+)─┬→ post_attention_layernorm → mlp ─(+)─ … → norm → lm_head
                  └──────────── residual ──────────┘  └──────────── residual ─────────────┘

Every addition to the residual stream is followed by a norm, so the two are one op.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.backends.base import (
    Array,
    Backend,
    Batch,
    DecoderLayerWeights,
    DecoderStack,
    HostTensor,
    KVCache,
    KVCacheSpec,
)
from octavo.models.config import ModelConfig
from octavo.models.layers import Attention, CheckpointSection, GatedMLP, rotary_table


class LlamaModel:
    """A decoder-only transformer with its weights in ``backend``'s memory.

    Args:
        tensors: the checkpoint, by Hugging Face names.
        max_model_len: positions to prepare for.
    """

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, HostTensor], backend: Backend, max_model_len: int
    ) -> None:
        self.config = config
        self.backend = backend
        self.cos_sin = backend.from_host(rotary_table(config.rope, max_model_len))
        checkpoint = CheckpointSection(tensors, backend)
        decoder = checkpoint.section("model")
        self.embed_tokens = decoder.matrix("embed_tokens")
        self.layers = [DecoderLayer(self, decoder.section(f"layers.{i}"), i) for i in range(config.num_layers)]
        self.norm = decoder.vector("norm.weight")
        self.lm_head = self.embed_tokens if config.tie_word_embeddings else checkpoint.matrix("lm_head")
        self.fused_decoder = backend.fuse_decoder(self.decoder_stack())

    def make_attention(self, section: CheckpointSection, layer: int) -> Attention:
        """A layer's attention: where the architectures of this family differ.

        Llama itself has no biases and no window, but GGUF files call some relatives ``llama`` that do.
        """
        config = self.config
        return Attention(
            section, config, layer, self.cos_sin, bias=config.qkv_bias, sliding_window=config.sliding_window
        )

    def forward(self, batch: Batch, kv_cache: KVCache) -> Array:
        """One pass over the batch's new tokens → hidden states after the last norm, float32 [T, H]."""
        if self.fused_decoder is not None:
            return self.fused_decoder(batch, kv_cache)
        return self.forward_by_layers(batch, kv_cache)

    def forward_by_layers(self, batch: Batch, kv_cache: KVCache) -> Array:
        """The same, op by op: what a fused decoder must equal."""
        backend, epsilon = self.backend, self.config.rms_norm_eps
        residual = backend.embedding(self.embed_tokens, batch.input_ids)
        x = backend.rms_norm(residual, self.layers[0].input_layernorm, epsilon)
        next_norms = [layer.input_layernorm for layer in self.layers[1:]] + [self.norm]
        for layer, next_norm in zip(self.layers, next_norms, strict=True):
            x = layer.self_attn(backend, x, batch, kv_cache)
            x = backend.add_rms_norm(x, residual, layer.post_attention_layernorm, epsilon)
            x = layer.mlp(backend, x)
            x = backend.add_rms_norm(x, residual, next_norm, epsilon)
        return x

    def decoder_stack(self) -> DecoderStack:
        """What :meth:`forward_by_layers` computes, for a backend that can do it in one op."""
        config = self.config
        return DecoderStack(
            embed_tokens=self.embed_tokens,
            layers=[layer.weights() for layer in self.layers],
            norm=self.norm,
            cos_sin=self.cos_sin,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            epsilon=config.rms_norm_eps,
        )

    def compute_logits(self, hidden: Array) -> Array:
        """Hidden states [S, H] → logits, float32 [S, V]."""
        return self.backend.linear(hidden, self.lm_head)

    def kv_cache_spec(self, num_blocks: int, block_size: int, dtype: str) -> KVCacheSpec:
        """The cache that :meth:`forward` needs."""
        config = self.config
        return KVCacheSpec(config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim, dtype)


class DecoderLayer:
    """The weights of one layer, named as in the checkpoint."""

    def __init__(self, model: LlamaModel, section: CheckpointSection, layer: int) -> None:
        self.input_layernorm = section.vector("input_layernorm.weight")
        self.self_attn = model.make_attention(section.section("self_attn"), layer)
        self.post_attention_layernorm = section.vector("post_attention_layernorm.weight")
        self.mlp = GatedMLP(section.section("mlp"))

    def weights(self) -> DecoderLayerWeights:
        """The layer's part of a :class:`DecoderStack`."""
        return DecoderLayerWeights(
            qkv_proj=self.self_attn.qkv_proj,
            o_proj=self.self_attn.o_proj,
            gate_up_proj=self.mlp.gate_up_proj,
            down_proj=self.mlp.down_proj,
            input_layernorm=self.input_layernorm,
            post_attention_layernorm=self.post_attention_layernorm,
            qkv_bias=self.self_attn.qkv_bias,
            q_norm=self.self_attn.q_norm,
            k_norm=self.self_attn.k_norm,
            sliding_window=self.self_attn.sliding_window,
        )
