"""Models against ``transformers`` as it is installed here, and the torch backend against the golden files.

What ``tests/models`` compares with stored numbers is computed anew, so that a golden file cannot be wrong for long.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.forward_driver import ForwardDriver
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from octavo.backends.base import Backend
from octavo.backends.reference import ReferenceBackend
from octavo.backends.torch import TorchBackend
from octavo.models.registry import build_model
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.loader import open_checkpoint
from octavo.weights.sources import resolve_model

FOLDER = Path(__file__).parents[1] / "golden" / "models"
EXPECTED = np.load(FOLDER / "expected.npz")
MODELS = sorted({key.rsplit(".", 1)[0] for key in EXPECTED.files})
SAFETENSORS_MODELS = [name for name in MODELS if not name.endswith(".gguf")]
LOGITS_TOLERANCE = {"cpu": 2e-6, "cuda": 2e-3}


def make_driver(checkpoint: Checkpoint, backend: Backend) -> ForwardDriver:
    model = build_model(checkpoint.config, checkpoint.tensors, backend, max_model_len=128)
    return ForwardDriver(model, backend, max_tokens=128, block_size=8)


@pytest.mark.parametrize("name", SAFETENSORS_MODELS)
def test_transformers_still_computes_the_golden_logits(name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(FOLDER / name, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits = model(torch.tensor(EXPECTED[f"{name}.prompt"], dtype=torch.int64)[None]).logits[0].numpy()
    np.testing.assert_allclose(logits, EXPECTED[f"{name}.logits"], rtol=0, atol=1e-6)


@pytest.fixture(scope="module", params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def torch_backend(request: pytest.FixtureRequest) -> TorchBackend:
    return TorchBackend(request.param)


@pytest.mark.parametrize("chunk_size", [48, 16, 7, 1])
@pytest.mark.parametrize("name", MODELS)
def test_torch_logits_equal_the_golden_ones(name: str, torch_backend: TorchBackend, chunk_size: int) -> None:
    driver = make_driver(open_checkpoint(FOLDER / name), torch_backend)
    logits = driver.prefill(EXPECTED[f"{name}.prompt"], chunk_size)
    tolerance = LOGITS_TOLERANCE[torch.device(torch_backend.device).type]
    np.testing.assert_allclose(logits, EXPECTED[f"{name}.logits"], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_64_greedy_tokens_on_torch_equal_the_golden_ones(name: str) -> None:
    """On the CPU: a GPU rounds more than the distances between these tiny models' tokens allow for."""
    generated = make_driver(open_checkpoint(FOLDER / name), TorchBackend("cpu")).generate(
        EXPECTED[f"{name}.prompt"], 64
    )
    assert generated == EXPECTED[f"{name}.greedy"].tolist()


def test_the_default_model_computes_what_transformers_does_with_its_weights() -> None:
    checkpoint = open_checkpoint(resolve_model("default"))
    config = checkpoint.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=True,
            attn_implementation="eager",
        )
    )
    weights = {name: torch.from_numpy(tensor.dequantize()) for name, tensor in checkpoint.tensors.items()}
    leftovers = model.load_state_dict(weights, strict=False)
    assert (leftovers.missing_keys, leftovers.unexpected_keys) == (["lm_head.weight"], [])
    model.tie_weights()

    token_ids = np.random.default_rng(0).integers(0, config.vocab_size, 40).astype(np.int32)
    with torch.no_grad():
        expected = model.eval()(torch.tensor(token_ids, dtype=torch.int64)[None]).logits[0].numpy()
    actual = make_driver(checkpoint, ReferenceBackend()).prefill(token_ids, 16)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-3)
