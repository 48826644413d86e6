"""Quantising while loading: what codes come out, that all backends see the same ones, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from support.forward_driver import ForwardDriver
from support.tiny_llm import tiny_model

from octavo import LLM, SamplingParams
from octavo.backends.base import HostTensor, TensorType
from octavo.backends.native import NativeBackend
from octavo.backends.reference import ReferenceBackend
from octavo.errors import ConfigError, ModelFileError
from octavo.models.registry import build_model
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.loader import open_checkpoint
from octavo.weights.quantize import quantize, quantize_checkpoint
from octavo.weights.safetensors import read_safetensors

MODELS = Path(__file__).parents[1] / "golden" / "models"
FLOAT16_ULP = 2.0**-10


def dequantized(values: np.ndarray, type: TensorType) -> np.ndarray:
    return quantize(HostTensor.from_array("weight", values), type).dequantize()


def test_an_int8_code_is_the_nearest() -> None:
    values = np.random.default_rng(1).standard_normal((40, 96)).astype(np.float32)
    steps = np.abs(values.reshape(-1, 32)).max(axis=1) / 127
    errors = np.abs(dequantized(values, TensorType.Q8_0) - values).reshape(-1, 32).max(axis=1)
    assert (errors <= steps * (0.5 + FLOAT16_ULP * 127)).all()
    assert (errors > 0.25 * steps).mean() > 0.9


def test_what_int8_can_hold_it_holds_exactly() -> None:
    """Codes times a scale of half precision, the largest code 127: the same again."""
    generator = np.random.default_rng(2)
    codes = generator.integers(-127, 128, (60, 32)).astype(np.float32)
    codes[:, 3] = -127
    scales = generator.uniform(0.001, 0.1, (60, 1)).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(dequantized(codes * scales, TensorType.Q8_0), codes * scales)


def test_what_int4_can_hold_it_holds_nearly() -> None:
    generator = np.random.default_rng(3)
    codes = generator.integers(0, 16, (60, 32)).astype(np.float32)
    codes[:, 3], codes[:, 8] = 0, 15
    values = codes * np.float32(0.25) - generator.integers(0, 9, (60, 1)).astype(np.float32)
    np.testing.assert_allclose(dequantized(values, TensorType.Q4_1), values, atol=2e-3)


def test_int4_is_better_than_cutting_the_range_into_steps() -> None:
    groups = np.random.default_rng(4).standard_normal((500, 32)).astype(np.float32)
    low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
    scales = (high - low) / 15
    plain = np.rint((groups - low) / scales) * scales + low
    error, plain_error = (np.square(x - groups).mean() for x in (dequantized(groups, TensorType.Q4_1), plain))
    assert error < 0.92 * plain_error


@pytest.mark.parametrize("type", [TensorType.Q8_0, TensorType.Q4_1], ids=lambda type: type.label)
def test_odd_groups(type: TensorType) -> None:
    """All zero, all equal, a single number, numbers below half precision: close to what they are, and finite."""
    values = np.zeros((5, 32), np.float32)
    values[1], values[2, 7], values[3], values[4, ::2] = 3, -5, 1e-9, 1e-6
    largest = np.abs(values).max(axis=1, keepdims=True)
    assert (np.abs(dequantized(values, type) - values) <= 0.002 * largest + 3e-7).all()


@pytest.mark.parametrize("damage", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("type", [TensorType.Q8_0, TensorType.Q4_1], ids=lambda type: type.label)
def test_numbers_that_no_scale_reaches_are_refused(type: TensorType, damage: float) -> None:
    values = np.ones((3, 64), np.float32)
    values[1, 40] = damage
    with pytest.raises(FloatingPointError, match="not finite, or too large"):
        quantize(HostTensor.from_array("weight", values), type)


@pytest.mark.parametrize("type", [TensorType.Q8_0, TensorType.Q4_1], ids=lambda type: type.label)
def test_all_backends_compute_with_the_same_codes(type: TensorType) -> None:
    values = np.random.default_rng(5).standard_normal((37, 96)).astype(np.float32)
    tensor = quantize(HostTensor.from_array("weight", values), type)
    rows = np.arange(37, dtype=np.int32)
    native, reference = (
        backend.embedding(backend.prepare_weight([tensor]), rows) for backend in (NativeBackend(1), ReferenceBackend())
    )
    np.testing.assert_array_equal(native, reference)
    np.testing.assert_array_equal(native, tensor.dequantize())


# ---- whole models -------------------------------------------------------------------------------------------------


def logits(checkpoint: Checkpoint, backend: NativeBackend | ReferenceBackend) -> np.ndarray:
    model = build_model(checkpoint.config, checkpoint.tensors, backend, max_model_len=64)
    token_ids = np.arange(5, 45, dtype=np.int32)
    return ForwardDriver(model, backend, max_tokens=64).forward(token_ids)


@pytest.mark.parametrize("name", ["llama", "llama-bf16", "qwen2", "qwen3"])
@pytest.mark.parametrize(("quantization", "tolerance"), [("int8", 0.04), ("int4", 0.4)])
def test_a_quantised_model_is_near_the_plain_one(name: str, quantization: str, tolerance: float) -> None:
    """In units of the logits' own spread; and native is as near to reference as without quantisation."""
    plain = open_checkpoint(MODELS / name)
    small = quantize_checkpoint(plain, quantization)
    expected, actual = logits(plain, ReferenceBackend()), logits(small, ReferenceBackend())
    spread = float(expected.std())
    assert 0.001 * spread < np.sqrt(np.square(actual - expected).mean()) < tolerance * spread
    np.testing.assert_allclose(logits(small, NativeBackend(1)), actual, atol=2e-3)


def test_sizes_are_those_of_the_codes() -> None:
    plain = open_checkpoint(MODELS / "llama-bf16")
    for quantization in ("int8", "int4"):
        checkpoint = quantize_checkpoint(plain, quantization)
        sizes: dict[str, int] = {}
        for tensor in checkpoint.tensors.values():
            sizes[tensor.type.label] = sizes.get(tensor.type.label, 0) + tensor.num_bytes
        assert checkpoint.bytes_by_type == sizes
        assert set(sizes) == {"Q8_0", "BF16"} | ({"Q4_1"} if quantization == "int4" else set())


def test_through_the_engine(tmp_path: Path) -> None:
    """Answers differ from the plain model's, and depend on nothing else."""
    path = str(tiny_model(tmp_path / "model", "llama-bf16"))
    params = SamplingParams(temperature=0, max_tokens=20, logprobs=1)
    prompts = [list(range(3, 30)), list(range(40, 80))]
    answers = [
        [output.outputs[0].logprobs for output in LLM(path, num_blocks=16, **keywords).generate(prompts, params)]
        for keywords in ({}, {"quantization": "int4", "num_threads": 1}, {"quantization": "int4", "num_threads": 2})
    ]
    assert answers[0] != answers[1]
    assert answers[1] == answers[2]


def test_a_quantised_file_is_refused() -> None:
    checkpoint = open_checkpoint(MODELS / "llama-q4_1.gguf")
    with pytest.raises(
        ConfigError, match=r"llama-q4_1.gguf is quantised already \(.*Q4_1.*\); leave out quantization=int8"
    ):
        quantize_checkpoint(checkpoint, "int8")


def test_rows_that_are_no_whole_groups_are_refused(tmp_path: Path) -> None:
    config = json.loads((MODELS / "llama" / "config.json").read_text())
    checkpoint = open_checkpoint(MODELS / "llama")
    shorter = dataclasses.replace(checkpoint.config, intermediate_size=config["intermediate_size"] - 8)
    with pytest.raises(ConfigError, match=r"down_proj.weight has rows of .* whole groups of 32"):
        quantize_checkpoint(dataclasses.replace(checkpoint, config=shorter), "int4")


def test_a_damaged_matrix_is_named() -> None:
    checkpoint = open_checkpoint(MODELS / "llama")
    tensors = dict(read_safetensors(MODELS / "llama" / "model.safetensors"))
    name = "model.layers.0.mlp.up_proj.weight"
    values = tensors[name].dequantize()
    values[2, 3] = np.nan
    tensors[name] = HostTensor.from_array(name, values)
    damaged = quantize_checkpoint(dataclasses.replace(checkpoint, tensors=tensors), "int8")
    with pytest.raises(ModelFileError, match=r"up_proj.weight.* not finite"):
        damaged.tensors[name]
