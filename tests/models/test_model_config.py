"""A header becomes one value; whatever would change the arithmetic unseen is refused by name."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.host_tensor import HostTensor
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.config import (
    FactorScaling,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeConfig,
    YarnScaling,
)

PATH = Path("/models/tiny/config.json")

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "max_position_embeddings": 512,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}


def read(config: dict[str, Any], generation_config: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    return ModelConfig.from_hugging_face(config | changes, generation_config, PATH)


GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.context_length": 512,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 8,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
EMBEDDINGS = {"token_embd.weight": HostTensor.from_array("token_embd.weight", np.zeros((1000, 64), np.float32))}


def read_gguf_header(changes: dict[str, Any], tensors: dict[str, HostTensor] | None = None) -> ModelConfig:
    metadata = {key: value for key, value in (GGUF | changes).items() if value is not None}
    return ModelConfig.from_gguf(metadata, EMBEDDINGS | (tensors or {}), Path("/models/tiny.gguf"))


# ---- Hugging Face -------------------------------------------------------------------------------------------------


def test_absent_fields_take_the_defaults_of_transformers() -> None:
    assert read(LLAMA) == ModelConfig(
        architecture="llama",
        name="tiny",
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=96,
        num_layers=3,
        num_heads=8,
        num_kv_heads=8,
        head_dim=8,
        rms_norm_eps=1e-6,
        max_position_embeddings=512,
        rope=RopeConfig(theta=10_000.0, rotary_dim=8),
    )


def test_given_fields_are_read() -> None:
    config = read(
        QWEN3,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        rope_theta=1_000_000,
        tie_word_embeddings=True,
        bos_token_id=5,
        eos_token_id=[7, 9, 7],
    )
    assert (config.num_kv_heads, config.head_dim, config.rms_norm_eps) == (2, 16, 1e-5)
    assert (config.rope.theta, config.rope.rotary_dim) == (1e6, 16)
    assert (config.tie_word_embeddings, config.bos_token_id, config.eos_token_ids) == (True, 5, (7, 9))


def test_each_architecture_has_its_own_parts() -> None:
    parts = {c["model_type"]: (read(c).qkv_bias, read(c).qk_norm) for c in (LLAMA, MISTRAL, QWEN2, QWEN3)}
    assert parts == {"llama": (False, False), "mistral": (False, False), "qwen2": (True, False), "qwen3": (False, True)}


def test_the_generation_config_decides_what_ends_an_answer() -> None:
    assert read(LLAMA, {"eos_token_id": [3, 4]}, eos_token_id=2).eos_token_ids == (3, 4)
    assert read(LLAMA, {"temperature": 1}, eos_token_id=2).eos_token_ids == (2,)
    with pytest.raises(
        ModelFileError, match=r"/models/tiny/generation_config\.json: eos_token_id: must hold token ids"
    ):
        read(LLAMA, {"eos_token_id": 1000})


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("vocab_size", None, "is missing"),
        ("vocab_size", 0, "must be between 1 and"),
        ("vocab_size", 1 << 40, "must be between 1 and"),
        pytest.param("vocab_size", 10**4000, "must be between 1 and", id="endless"),
        ("hidden_size", "64", "must be an integer, not '64'"),
        ("hidden_size", 64.0, "must be an integer, not 64.0"),
        ("hidden_size", True, "must be an integer, not True"),
        ("intermediate_size", -1, "must be between 1 and"),
        ("num_hidden_layers", 5000, "must be between 1 and 4,096, not 5000"),
        ("num_key_value_heads", [8], r"must be an integer, not \[8\]"),
        ("rms_norm_eps", "small", "must be a number"),
        ("rms_norm_eps", 0, "must be above 0 and at most 1"),
        ("rms_norm_eps", math.nan, "must be above 0 and at most 1, not nan"),
        ("rms_norm_eps", math.inf, "must be above 0 and at most 1, not inf"),
        pytest.param("rms_norm_eps", 10**400, "must be above 0 and at most 1", id="past-float"),
        ("rope_theta", 1, "must be above 1"),
        ("tie_word_embeddings", 1, "must be true or false"),
        ("bos_token_id", 1000, "must hold token ids from 0 to 999, not 1000"),
        ("bos_token_id", [1, 2], r"must be one token id, not \[1, 2\]"),
        ("eos_token_id", "</s>", "must hold token ids from 0 to 999, not '</s>'"),
        ("model_type", 3, "must be a string, not 3"),
        ("rope_scaling", "linear", "must be an object"),
    ],
)
def test_a_value_of_the_wrong_type_or_size_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(ModelFileError, match=rf"^/models/tiny/config\.json: {field}: {message}") as caught:
        read(LLAMA, **{field: value})
    assert caught.value.field == field


def test_heads_must_fit_together() -> None:
    with pytest.raises(ModelFileError, match="8 query heads cannot share 3 key/value heads evenly"):
        read(LLAMA, num_key_value_heads=3)
    with pytest.raises(ModelFileError, match="head_dim: must be even to rotate in pairs, not 7"):
        read(LLAMA, head_dim=7)


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"model_type": "gemma2"}, "model_type"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"architectures": ["MistralForCausalLM"]}, "architectures"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"sliding_window": 100}, "sliding_window"),
        ({"layer_types": ["sliding_attention"] * 3}, "layer_types"),
    ],
)
def test_what_octavo_lacks_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"^/models/tiny/config\.json: {field}: "):
        read(LLAMA, **changes)


@pytest.mark.parametrize("neutral", [{"attention_bias": False}, {"num_experts": 0}, {"rope_scaling": None}, {"a": 1}])
def test_neutral_values_change_nothing(neutral: dict[str, Any]) -> None:
    assert read(LLAMA, **neutral) == read(LLAMA)


@pytest.mark.parametrize(
    "config, changes, window",
    [
        (MISTRAL, {}, 4096),
        (MISTRAL, {"sliding_window": None}, None),
        (MISTRAL, {"sliding_window": 64}, 64),
        (QWEN2, {"sliding_window": 64}, None),
        (QWEN2, {"sliding_window": 64, "use_sliding_window": False, "max_window_layers": 0}, None),
        (QWEN2, {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0}, 64),
        (QWEN2, {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3}, None),
        (QWEN2, {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 28}, None),
        (QWEN2, {"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0}, None),
        (QWEN3, {"sliding_window": None, "layer_types": ["full_attention"] * 3}, None),
        (
            QWEN3,
            {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3}
            | {"layer_types": ["sliding_attention"] * 3},
            64,
        ),
    ],
)
def test_the_window_is_the_one_of_all_layers(config: dict, changes: dict, window: int | None) -> None:
    assert read(config, **changes).sliding_window == window


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"max_window_layers": 2}, "layer_types: 1 of 3 layers slide"),
        ({"max_window_layers": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "1 of 3"),
        ({"max_window_layers": 3, "layer_types": ["full_attention"] * 2}, "layer_types: must be 3 layers"),
        ({"max_window_layers": 0, "layer_types": ["linear_attention"] * 3}, "layer_types: must be 3 layers"),
        ({"max_window_layers": 0, "layer_types": "full"}, "layer_types: must be 3 layers"),
    ],
)
def test_windows_in_some_layers_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read(QWEN2, sliding_window=64, use_sliding_window=True, **changes)


LLAMA3_SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "fields, scaling",
    [
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, LinearScaling(2.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, None),
        ({"rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 1e4}}, LinearScaling(4.0)),
        (
            {"rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 128} | LLAMA3_SCALING},
            Llama3Scaling(8.0, 1.0, 4.0, 128),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
            YarnScaling(4.0, 128, 0.1 * math.log(4) + 1),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 16, "attention_factor": 1.0}},
            YarnScaling(4.0, 512, 1.0, beta_fast=16.0),
        ),
    ],
)
def test_rope_scaling_is_read_in_both_spellings(fields: dict[str, Any], scaling: object) -> None:
    assert read(LLAMA, **fields).rope == RopeConfig(10_000.0, 8, scaling)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields, error, message",
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, UnsupportedModelError, r"rope_scaling\.rope_type: 'dyn"),
        ({"rope_parameters": {"rope_type": "longrope"}}, UnsupportedModelError, r"rope_parameters\.rope_type: 'longr"),
        ({"rope_scaling": {"type": "linear"}}, ModelFileError, r"rope_scaling\.factor: is missing"),
        (
            {"rope_scaling": {"type": "linear", "factor": 0}},
            ModelFileError,
            r"rope_scaling\.factor: must be above 1e-06",
        ),
        ({"rope_scaling": {"type": ["linear"]}}, ModelFileError, r"rope_scaling\.type: must be a string"),
        (
            {"rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}},
            UnsupportedModelError,
            r"rope_scaling\.mrope_section: is not known",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            UnsupportedModelError,
            r"rope_parameters\.partial_rotary_factor: 0\.5 is not supported",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3"} | LLAMA3_SCALING | {"high_freq_factor": 1.0}},
            ModelFileError,
            r"rope_scaling\.high_freq_factor: must be above low_freq_factor",
        ),
        (
            {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            ModelFileError,
            r"rope_theta: contradicts rope_parameters\.rope_theta",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}},
            ModelFileError,
            "rope_scaling: contradicts rope_parameters",
        ),
    ],
)
def test_rope_that_is_unknown_or_contradicts_itself_is_refused(
    fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=rf"config\.json: {message}"):
        read(LLAMA, **fields)


# ---- frequencies --------------------------------------------------------------------------------------------------


def test_plain_and_divided_frequencies() -> None:
    assert RopeConfig(10_000.0, 8).inverse_frequencies().tolist() == pytest.approx([1, 0.1, 0.01, 0.001], rel=1e-15)
    linear = RopeConfig(10_000.0, 8, LinearScaling(4.0)).inverse_frequencies()
    assert linear.tolist() == pytest.approx([0.25, 0.025, 0.0025, 0.00025], rel=1e-15)
    factors = RopeConfig(10_000.0, 8, FactorScaling((1.0, 2.0, 4.0, 5.0))).inverse_frequencies()
    assert factors.tolist() == pytest.approx([1, 0.05, 0.0025, 0.0002], rel=1e-15)


def test_llama3_keeps_fast_pairs_and_divides_slow_ones() -> None:
    """Wavelengths of 6.3, 62.8, 628 and 6,283 tokens; of the 512, the first two turn over 4 times, the last none."""
    scaled = RopeConfig(10_000.0, 8, Llama3Scaling(8.0, 1.0, 4.0, 1024)).inverse_frequencies()
    turns = 1024 * 0.01 / (2 * math.pi)
    kept = (turns - 1) / 3
    assert scaled.tolist() == pytest.approx([1, 0.1, 0.01 * (kept + (1 - kept) / 8), 0.001 / 8], rel=1e-12)


def test_yarn_interpolates_by_the_number_of_the_pair() -> None:
    """Of 16 pairs over 512 tokens, the passage runs from pair floor(1.62) = 1 to pair ceil(7.64) = 8."""
    plain = RopeConfig(10_000.0, 32).inverse_frequencies()
    rope = RopeConfig(10_000.0, 32, YarnScaling(4.0, 512, 1.25))
    interpolated = np.clip((np.arange(16) - 1) / 7, 0, 1)
    expected = plain * (1 - interpolated) + plain / 4 * interpolated
    np.testing.assert_allclose(rope.inverse_frequencies(), expected, rtol=1e-12)
    assert (rope.attention_factor, RopeConfig(10_000.0, 32).attention_factor) == (1.25, 1.0)


# ---- GGUF ---------------------------------------------------------------------------------------------------------


def test_a_gguf_header_is_read() -> None:
    assert read_gguf_header({"llama.vocab_size": 1000}) == ModelConfig(
        architecture="llama",
        name="tiny",
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=96,
        num_layers=3,
        num_heads=8,
        num_kv_heads=8,
        head_dim=8,
        rms_norm_eps=1e-5,
        max_position_embeddings=512,
        rope=RopeConfig(theta=10_000.0, rotary_dim=8),
        tie_word_embeddings=True,
    )


def test_gguf_tokens_that_end_an_answer_are_gathered() -> None:
    ids = {"bos": 1, "eos": 9, "eot": 8, "eom": 9, "padding": 3}
    config = read_gguf_header({f"tokenizer.ggml.{kind}_token_id": value for kind, value in ids.items()})
    assert (config.bos_token_id, config.eos_token_ids) == (1, (9, 8))


@pytest.mark.parametrize(
    "metadata, scaling",
    [
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 2.0}, None),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}, LinearScaling(2.0)),
        ({"llama.rope.scaling.factor": 2.0}, LinearScaling(2.0)),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
            | {"llama.rope.scaling.original_context_length": 128},
            YarnScaling(4.0, 128, 0.1 * math.log(4) + 1),
        ),
    ],
)
def test_gguf_rope_scaling_is_read(metadata: dict[str, Any], scaling: object) -> None:
    config = read_gguf_header({"llama.rope.freq_base": 5e5} | metadata)
    assert config.rope == RopeConfig(5e5, 8, scaling)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"general.architecture": None}, ModelFileError, r"general\.architecture: is missing"),
        ({"general.architecture": ["llama"]}, ModelFileError, r"general\.architecture: must be a string"),
        ({"general.architecture": "gpt2"}, UnsupportedModelError, r"general\.architecture: 'gpt2' is none of"),
        ({"general.name": 4}, ModelFileError, r"general\.name: must be a string"),
        ({"split.count": 3}, UnsupportedModelError, r"split\.count: the model is split"),
        ({"llama.block_count": None}, ModelFileError, r"llama\.block_count: is missing"),
        ({"llama.vocab_size": 999}, ModelFileError, r"llama\.vocab_size: is 999, but .* has 1,000 rows"),
        ({"llama.feed_forward_length": [96, 96]}, ModelFileError, r"llama\.feed_forward_length: must be an integer"),
        ({"llama.attention.value_length": 4}, UnsupportedModelError, r"llama\.attention\.value_length: differs"),
        ({"llama.rope.dimension_count": 4}, UnsupportedModelError, r"llama\.rope\.dimension_count: only heads that"),
        ({"llama.rope.scaling.type": "longrope"}, UnsupportedModelError, r"llama\.rope\.scaling\.type: 'longrope'"),
        ({"llama.rope.scaling.type": "linear"}, ModelFileError, r"llama\.rope\.scaling\.factor: is missing"),
        ({"llama.expert_count": 8}, UnsupportedModelError, r"llama\.expert_count: 8 is not supported"),
        ({"llama.logit_scale": 0.5}, UnsupportedModelError, r"llama\.logit_scale: Octavo does not know this field"),
        ({"tokenizer.ggml.eos_token_id": 1000}, ModelFileError, r"tokenizer\.ggml\.eos_token_id: must hold token ids"),
    ],
)
def test_gguf_fields_that_are_wrong_or_unknown_are_named(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=rf"^/models/tiny\.gguf: {message}"):
        read_gguf_header(changes)


def test_scaling_on_top_of_factors_is_refused() -> None:
    factors = HostTensor.from_array("rope_freqs.weight", np.ones(4, np.float32))
    with pytest.raises(UnsupportedModelError, match=r"linear scaling on top of the tensor rope_freqs\.weight"):
        read_gguf_header({"llama.rope.scaling.factor": 2.0}, {"rope_freqs.weight": factors})


def test_parameters_are_counted_once_when_tied() -> None:
    layer = 4 * 64 * 64 + 3 * 64 * 96 + 2 * 64
    tied = read(LLAMA, tie_word_embeddings=True)
    assert tied.num_parameters == 1000 * 64 + 3 * layer + 64
    assert dataclasses.replace(tied, tie_word_embeddings=False).num_parameters == 2 * 1000 * 64 + 3 * layer + 64
