"""The fused decoder stack: the bits of the plain ops, whatever the pieces, threads and instruction set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.forward_driver import ForwardDriver

from octavo.backends.native import NativeBackend, cpu_plan
from octavo.models.registry import build_model
from octavo.weights.loader import open_checkpoint

FOLDER = Path(__file__).parents[1] / "golden" / "models"
MODELS = ("llama", "llama-bf16", "llama-q4_1.gguf", "llama3-q8_0.gguf", "qwen2", "qwen3", "mistral")
NUM_TOKENS = 90


def logits(name: str, backend: NativeBackend, chunk_size: int, *, fused: bool) -> np.ndarray:
    checkpoint = open_checkpoint(FOLDER / name)
    model = build_model(checkpoint.config, checkpoint.tensors, backend, max_model_len=128)
    if not fused:
        model.fused_decoder = None
    token_ids = np.random.default_rng(5).integers(3, checkpoint.config.vocab_size, NUM_TOKENS)
    return ForwardDriver(model, backend, max_tokens=128).prefill(token_ids, chunk_size)


@pytest.mark.parametrize("name", MODELS)
def test_fused_equals_the_plain_ops_bit_for_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logits(name, NativeBackend(num_threads=1), NUM_TOKENS, fused=False)
    assert np.isfinite(expected).all()
    for isa in cpu_plan().available_isas[1:]:
        monkeypatch.setenv("OCTAVO_ISA", isa)
        for num_threads, chunk_size in ((1, NUM_TOKENS), (2, 1), (2, 7), (3, 33)):
            got = logits(name, NativeBackend(num_threads=num_threads), chunk_size, fused=True)
            np.testing.assert_array_equal(got.view(np.int32), expected.view(np.int32), err_msg=f"{isa} {chunk_size}")
