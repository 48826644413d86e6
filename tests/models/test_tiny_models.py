"""Tiny random models of every architecture against what float32 ``transformers`` computed with the same weights.

``tests/golden/models/make_models.py`` made them and says how their prompts were chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.forward_driver import ForwardDriver

from octavo.backends.base import Backend
from octavo.backends.reference import ReferenceBackend
from octavo.backends.registry import create_backend
from octavo.config import BackendConfig
from octavo.models.registry import build_model
from octavo.weights.loader import open_checkpoint

FOLDER = Path(__file__).parents[1] / "golden" / "models"
EXPECTED = np.load(FOLDER / "expected.npz")
MODELS = sorted({key.rsplit(".", 1)[0] for key in EXPECTED.files})

BACKENDS: dict[str, Callable[[], Backend]] = {
    "reference": ReferenceBackend,
    "reference-native": lambda: ReferenceBackend("native"),
    "native": lambda: create_backend(BackendConfig(backend="native")),
}
LOGITS_TOLERANCE = {"reference": 2e-6, "reference-native": 2e-3, "native": 2e-3}
"""What float32 sums in another order may change, and what rounding activations, keys and values may."""


@pytest.fixture(scope="module", params=BACKENDS)
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def backend(backend_name: str) -> Backend:
    return BACKENDS[backend_name]()


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_driver(name: str, backend: Backend, block_size: int = 16) -> ForwardDriver:
    checkpoint = open_checkpoint(FOLDER / name)
    model = build_model(checkpoint.config, checkpoint.tensors, backend, max_model_len=128)
    return ForwardDriver(model, backend, max_tokens=128, block_size=block_size)


def test_every_architecture_has_a_model() -> None:
    assert MODELS == [
        "llama", "llama-bf16", "llama-q4_1.gguf", "llama3", "llama3-q8_0.gguf", "mistral", "qwen2", "qwen3"
    ]  # fmt: skip


@pytest.mark.parametrize("chunk_size", [48, 16, 7, 1])
def test_logits_equal_transformers_at_every_position(
    name: str, backend_name: str, backend: Backend, chunk_size: int
) -> None:
    logits = make_driver(name, backend, block_size=8).prefill(EXPECTED[f"{name}.prompt"], chunk_size)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, EXPECTED[f"{name}.logits"], rtol=0, atol=LOGITS_TOLERANCE[backend_name])


def test_64_greedy_tokens_equal_transformers(name: str, backend: Backend) -> None:
    generated = make_driver(name, backend).generate(EXPECTED[f"{name}.prompt"], 64)
    assert generated == EXPECTED[f"{name}.greedy"].tolist()


def test_a_window_off_by_one_would_show() -> None:
    """Of Mistral's tiny window, that is: it is 12 tokens, and 13 change the logits from the 13th token on."""
    checkpoint = open_checkpoint(FOLDER / "mistral")
    assert checkpoint.config.sliding_window == 12
    config = dataclasses.replace(checkpoint.config, sliding_window=13)
    model = build_model(config, checkpoint.tensors, ReferenceBackend(), max_model_len=128)
    logits = ForwardDriver(model, ReferenceBackend(), max_tokens=128).forward(EXPECTED["mistral.prompt"])
    error = np.abs(logits - EXPECTED["mistral.logits"]).max(axis=1)
    assert error[:12].max() < LOGITS_TOLERANCE["reference"]
    assert error[12:].min() > 10 * LOGITS_TOLERANCE["reference"]
    assert error[12:].max() > 2 * LOGITS_TOLERANCE["native"]
