"""Rotary frequencies of every kind of scaling, against transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.models.config import ModelConfig

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 512, "attention_factor": 1.1},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "beta_fast": 16, "beta_slow": 2},
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: f"{scaling['rope_type']}-{scaling['factor']}")
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_frequencies_equal_those_of_transformers(scaling: dict[str, Any], theta: float, head_dim: int) -> None:
    sizes = {"vocab_size": 100, "hidden_size": 4 * head_dim, "intermediate_size": 64, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 4, "head_dim": head_dim, "max_position_embeddings": 131072}
    theirs = LlamaConfig(**sizes, rope_parameters=scaling | {"rope_theta": theta})
    expected, attention_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, device="cpu")
    ours = ModelConfig.from_hugging_face(theirs.to_dict(), None, Path("config.json")).rope
    np.testing.assert_allclose(ours.inverse_frequencies(), expected.numpy(), rtol=2e-6)
    assert ours.attention_factor == pytest.approx(attention_factor, rel=1e-12)
