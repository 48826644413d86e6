"""What a model is: sizes and choices, read from a Hugging Face ``config.json`` or a GGUF header into one frozen value.

Nothing that changes the arithmetic is skipped over: what Octavo does not know is an error that names the field.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.backends.base import HostTensor
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.config_fields import ConfigFields, shown
from octavo.models.rope_config import (
    FactorScaling,
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)

__all__ = ["FactorScaling", "LinearScaling", "Llama3Scaling", "ModelConfig", "RopeConfig", "RopeScaling", "YarnScaling"]

CAUSAL_LM_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""``model_type`` → the class that ``architectures`` must name."""

MAX_LAYERS = 4096
MAX_VOCAB_SIZE = 1 << 24
MIN_SCALE = 1e-6
"""Numbers that scale rotary frequencies are greater, so that no frequency overflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and choices of a decoder-only transformer.

    Attributes:
        architecture: ``llama``, ``mistral``, ``qwen2`` or ``qwen3``.
        name: what the file calls itself.
        head_dim: elements of a head; ``num_heads * head_dim`` need not be ``hidden_size``.
        max_position_embeddings: tokens of the longest context.
        tie_word_embeddings: the logits use the embedding matrix; there is no ``lm_head.weight``.
        qkv_bias: the q, k and v projections add biases.
        qk_norm: each head of q and k is normalised before it rotates.
        sliding_window: tokens that a token sees, itself included; ``None``: all before it.
        eos_token_ids: tokens that end an answer.
    """

    architecture: str
    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors; tied ones count once."""
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the checkpoint by its Hugging Face name, with its shape."""
        hidden, heads, kv_heads = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (heads, hidden),
            "self_attn.k_proj.weight": (kv_heads, hidden),
            "self_attn.v_proj.weight": (kv_heads, hidden),
            "self_attn.o_proj.weight": (hidden, heads),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (self.intermediate_size, hidden),
            "mlp.up_proj.weight": (self.intermediate_size, hidden),
            "mlp.down_proj.weight": (hidden, self.intermediate_size),
        }
        if self.qkv_bias:
            layer |= {f"self_attn.{p}_proj.bias": (n,) for p, n in (("q", heads), ("k", kv_heads), ("v", kv_heads))}
        if self.qk_norm:
            layer |= {f"self_attn.{p}_norm.weight": (self.head_dim,) for p in "qk"}
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for i in range(self.num_layers):
            shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    @classmethod
    def from_hugging_face(
        cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None, path: Path
    ) -> ModelConfig:
        """Read the contents of ``config.json`` (at ``path``) and of ``generation_config.json``, if there is one.

        Defaults are those of ``transformers``. End-of-text ids of the generation config win.

        Raises:
            ModelFileError, UnsupportedModelError: with the file and the field.
        """
        fields = ConfigFields(config, path)
        architecture = _hugging_face_architecture(fields)
        fields.must_be_neutral(_HUGGING_FACE_NEUTRAL)
        vocab_size = fields.count("vocab_size", limit=MAX_VOCAB_SIZE)
        num_heads = fields.count("num_attention_heads")
        hidden_size = fields.count("hidden_size")
        num_layers = fields.count("num_hidden_layers", limit=MAX_LAYERS)
        head_dim = fields.count("head_dim", max(1, hidden_size // num_heads))
        max_position_embeddings = fields.count("max_position_embeddings")
        eos_token_ids = fields.token_ids("eos_token_id", vocab_size)
        if generation_config is not None:
            generation = ConfigFields(generation_config, path.with_name("generation_config.json"))
            eos_token_ids = generation.token_ids("eos_token_id", vocab_size) or eos_token_ids
        return _consistent(
            path,
            cls(
                architecture=architecture,
                name=path.parent.name,
                vocab_size=vocab_size,
                hidden_size=hidden_size,
                intermediate_size=fields.count("intermediate_size"),
                num_layers=num_layers,
                num_heads=num_heads,
                num_kv_heads=fields.count("num_key_value_heads", num_heads),
                head_dim=head_dim,
                rms_norm_eps=fields.number("rms_norm_eps", 1e-6, above=0, limit=1),
                max_position_embeddings=max_position_embeddings,
                rope=_hugging_face_rope(fields, head_dim, max_position_embeddings),
                tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
                qkv_bias=architecture == "qwen2",
                qk_norm=architecture == "qwen3",
                sliding_window=_hugging_face_sliding_window(fields, architecture, num_layers),
                bos_token_id=fields.token_id("bos_token_id", vocab_size),
                eos_token_ids=eos_token_ids,
            ),
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], tensors: Mapping[str, HostTensor], path: Path) -> ModelConfig:
        """Read a GGUF header. ``tensors``, by their GGUF names, tell what the metadata does not: tied embeddings,
        biases, the size of the vocabulary, factors of the rotary frequencies.

        Mistral models say that they are ``llama`` in this format.

        Raises:
            ModelFileError, UnsupportedModelError: with the file and the field.
        """
        architecture = gguf_architecture(metadata, path)
        fields = ConfigFields(metadata, path, prefix=f"{architecture}.")
        _refuse_unknown_gguf_fields(fields)
        fields.must_be_neutral(_GGUF_NEUTRAL)
        if "token_embd.weight" not in tensors:
            raise ModelFileError(path, "token_embd.weight", "the tensor is missing")
        vocab_size = tensors["token_embd.weight"].shape[0]
        if fields.count("vocab_size", vocab_size) != vocab_size:
            fields.wrong(
                "vocab_size", f"is {fields.get('vocab_size'):,}, but token_embd.weight has {vocab_size:,} rows"
            )
        num_heads = fields.count("attention.head_count")
        hidden_size = fields.count("embedding_length")
        head_dim = fields.count("attention.key_length", max(1, hidden_size // num_heads))
        if fields.count("attention.value_length", head_dim) != head_dim:
            fields.unsupported("attention.value_length", f"differs from the length of keys ({head_dim})")
        tokens = ConfigFields(metadata, path, prefix="tokenizer.ggml.")
        ends = [tokens.token_ids(f"{kind}_token_id", vocab_size) for kind in ("eos", "eot", "eom")]
        return _consistent(
            path,
            cls(
                architecture=architecture,
                name=ConfigFields(metadata, path).text("general.name", path.stem),
                vocab_size=vocab_size,
                hidden_size=hidden_size,
                intermediate_size=fields.count("feed_forward_length"),
                num_layers=fields.count("block_count", limit=MAX_LAYERS),
                num_heads=num_heads,
                num_kv_heads=fields.count("attention.head_count_kv", num_heads),
                head_dim=head_dim,
                rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon", above=0, limit=1),
                max_position_embeddings=fields.count("context_length"),
                rope=_gguf_rope(fields, head_dim, tensors),
                tie_word_embeddings="output.weight" not in tensors,
                qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in tensors,
                qk_norm=architecture == "qwen3",
                sliding_window=fields.optional_count("attention.sliding_window"),
                bos_token_id=tokens.token_id("bos_token_id", vocab_size),
                eos_token_ids=tuple(dict.fromkeys(token_id for ids in ends for token_id in ids)),
            ),
        )


def _consistent(path: Path, config: ModelConfig) -> ModelConfig:
    """``config``, if its sizes fit together."""
    if config.num_heads % config.num_kv_heads:
        problem = f"{config.num_heads} query heads cannot share {config.num_kv_heads} key/value heads evenly"
        raise ModelFileError(path, "num_kv_heads", problem)
    if config.head_dim % 2:
        raise ModelFileError(path, "head_dim", f"must be even to rotate in pairs, not {config.head_dim}")
    return config


# ---- Hugging Face -------------------------------------------------------------------------------------------------

_NONE_OR_ONE = (0, 1)
_HUGGING_FACE_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "attention_bias": (False,),  # with it, o_proj has a bias too
    "attention_multiplier": (),
    "attn_logit_softcapping": (0,),
    "compression_config": (),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (0,),
    "hidden_act": ("silu", "swish"),
    "is_encoder_decoder": (False,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "mlp_bias": (False,),
    "n_routed_experts": _NONE_OR_ONE,
    "no_rope_layers": ([],),
    "num_experts": _NONE_OR_ONE,
    "num_local_experts": _NONE_OR_ONE,
    "partial_rotary_factor": (1,),
    "quantization_config": (),
    "residual_multiplier": (1,),
    "rope_interleaved": (False,),
}
"""Fields of ``config.json`` that would change what the model computes, with the values at which they do not."""


def _hugging_face_architecture(fields: ConfigFields) -> str:
    architecture = fields.text("model_type")
    if architecture not in CAUSAL_LM_CLASSES:
        fields.unsupported("model_type", f"{shown(architecture)} is none of {', '.join(CAUSAL_LM_CLASSES)}")
    classes = fields.get("architectures")
    if classes is not None and (not isinstance(classes, list) or CAUSAL_LM_CLASSES[architecture] not in classes):
        fields.unsupported("architectures", f"must name {CAUSAL_LM_CLASSES[architecture]}, not {shown(classes)}")
    return architecture


def _hugging_face_sliding_window(fields: ConfigFields, architecture: str, num_layers: int) -> int | None:
    """The window, which must be the same in every layer."""
    window = fields.optional_count("sliding_window")
    layer_types = fields.get("layer_types")
    if architecture == "llama":
        if window is not None:
            fields.unsupported("sliding_window", "Llama models attend to all tokens; remove it or set it to null")
        sliding_layers = 0
    elif architecture == "mistral":
        if "sliding_window" not in fields.values:
            window = 4096  # the first Mistral's, and so the default of the format
        sliding_layers = num_layers if window is not None else 0
    elif fields.boolean("use_sliding_window", False) and window is not None:
        sliding_layers = max(0, num_layers - fields.count("max_window_layers", at_least=0))
        if isinstance(layer_types, list):  # more precise, so it decides
            sliding_layers = layer_types.count("sliding_attention")
    else:
        sliding_layers = 0
    if layer_types is not None:
        expected = ["sliding_attention"] * sliding_layers + ["full_attention"] * (num_layers - sliding_layers)
        if not isinstance(layer_types, list) or Counter(map(shown, layer_types)) != Counter(map(shown, expected)):
            fields.unsupported("layer_types", f"must be {num_layers} layers that agree with sliding_window")
    if 0 < sliding_layers < num_layers:
        fields.unsupported("layer_types", f"{sliding_layers} of {num_layers} layers slide; all must, or none")
    return window if sliding_layers else None


_ROPE_FIELDS = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"},
}
"""Kinds of scaling by their Hugging Face names, with their own fields."""
_ROPE_COMMON_FIELDS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def _hugging_face_rope(fields: ConfigFields, head_dim: int, max_position_embeddings: int) -> RopeConfig:
    """``rope_parameters`` (newer files), or ``rope_scaling`` beside ``rope_theta`` (older ones)."""
    name = "rope_scaling" if fields.get("rope_parameters") is None else "rope_parameters"
    if name == "rope_parameters" and fields.get("rope_scaling") not in (None, fields.get("rope_parameters")):
        fields.wrong("rope_scaling", "contradicts rope_parameters")
    section = {f"{name}.{key}": value for key, value in (fields.section(name) or {}).items()}
    rope = ConfigFields(section, fields.path, prefix=f"{name}.")

    theta = rope.number("rope_theta", fields.number("rope_theta", 10_000.0, above=1), above=1)
    if fields.get("rope_theta") not in (None, theta):
        fields.wrong("rope_theta", f"contradicts {name}.rope_theta ({theta:g})")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in _ROPE_FIELDS:
        rope.unsupported("rope_type", f"{shown(kind)} is none of {', '.join(_ROPE_FIELDS)}")
    rope.must_be_neutral({"partial_rotary_factor": (1,)})
    for key in rope.values:
        if key.removeprefix(rope.prefix) not in _ROPE_FIELDS[kind] | _ROPE_COMMON_FIELDS:
            rope.unsupported(key.removeprefix(rope.prefix), f"is not known for rope_type {shown(kind)}")

    scaling: RopeScaling | None = None
    if kind != "default":
        factor = rope.number("factor", above=MIN_SCALE)
        original = rope.count(
            "original_max_position_embeddings",
            fields.count("original_max_position_embeddings", max_position_embeddings),
        )
    if kind == "linear":
        scaling = LinearScaling(factor)
    elif kind == "llama3":
        low, high = (rope.number(f"{end}_freq_factor", above=MIN_SCALE) for end in ("low", "high"))
        if high <= low:
            rope.wrong("high_freq_factor", f"must be above low_freq_factor ({low:g}), not {high:g}")
        scaling = Llama3Scaling(factor, low, high, original)
    elif kind == "yarn":
        scaling = YarnScaling(
            factor,
            original,
            attention_factor=rope.number(
                "attention_factor", YarnScaling.default_attention_factor(factor), above=MIN_SCALE
            ),
            beta_fast=rope.number("beta_fast", 32.0, above=MIN_SCALE),
            beta_slow=rope.number("beta_slow", 1.0, above=MIN_SCALE),
        )
    return RopeConfig(theta, head_dim, scaling)


# ---- GGUF ---------------------------------------------------------------------------------------------------------

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")

_GGUF_FIELDS = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "tensor_data_layout",
    "vocab_size",
}
_GGUF_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "use_parallel_residual": (False,),
}
"""Fields that would change what the model computes, with the values at which they do not."""


def gguf_architecture(metadata: Mapping[str, Any], path: Path) -> str:
    """The architecture that a GGUF header names, if Octavo has it."""
    fields = ConfigFields(metadata, path, prefix="general.")
    architecture = fields.text("architecture")
    if architecture not in GGUF_ARCHITECTURES:
        fields.unsupported("architecture", f"{shown(architecture)} is none of {', '.join(GGUF_ARCHITECTURES)}")
    if ConfigFields(metadata, path).get("split.count") not in (None, 0, 1):
        raise UnsupportedModelError(f"{path}: split.count: the model is split; join its parts with gguf-split --merge")
    return architecture


def _refuse_unknown_gguf_fields(fields: ConfigFields) -> None:
    for key in fields.values:
        name = key.removeprefix(fields.prefix)
        if key.startswith(fields.prefix) and name not in _GGUF_FIELDS and name not in _GGUF_NEUTRAL:
            fields.unsupported(name, "Octavo does not know this field, which may change what the model computes")


def _gguf_rope(fields: ConfigFields, head_dim: int, tensors: Mapping[str, HostTensor]) -> RopeConfig:
    if fields.count("rope.dimension_count", head_dim) != head_dim:
        fields.unsupported("rope.dimension_count", f"only heads that rotate whole ({head_dim}) are supported")
    kind = fields.text("rope.scaling.type", "none" if fields.get("rope.scaling.factor") is None else "linear")
    scaling: RopeScaling | None = None
    if kind == "linear":
        scaling = LinearScaling(fields.number("rope.scaling.factor", above=MIN_SCALE))
    elif kind == "yarn":
        factor = fields.number("rope.scaling.factor", above=MIN_SCALE)
        original = fields.count("rope.scaling.original_context_length", fields.count("context_length"))
        scaling = YarnScaling(factor, original, YarnScaling.default_attention_factor(factor))
    elif kind != "none":
        fields.unsupported("rope.scaling.type", f"{shown(kind)} is none of none, linear, yarn")
    if "rope_freqs.weight" in tensors:
        if scaling is not None:
            fields.unsupported("rope.scaling.type", f"{kind} scaling on top of the tensor rope_freqs.weight")
        scaling = FactorScaling(_rope_factors(tensors["rope_freqs.weight"], head_dim, fields.path))
    return RopeConfig(fields.number("rope.freq_base", 10_000.0, above=1), head_dim, scaling)


def _rope_factors(tensor: HostTensor, head_dim: int, path: Path) -> tuple[float, ...]:
    if tensor.shape != (head_dim // 2,) or tensor.type.is_quantized:
        problem = f"must be {head_dim // 2} plain numbers, not {tensor.type.label} {list(tensor.shape)}"
        raise ModelFileError(path, tensor.name, problem)
    factors = tuple(map(float, tensor.dequantize()))
    if not all(math.isfinite(factor) and factor > MIN_SCALE for factor in factors):
        raise ModelFileError(path, tensor.name, "every factor must be a positive number")
    return factors
