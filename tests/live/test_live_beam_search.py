"""Beam search against ``transformers``: the same hypotheses in the same order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.tiny_llm import EOS_ID, NUM_TOKENS, tiny_model
from transformers import AutoModelForCausalLM

from octavo import LLM

PROMPT = [5, 9, 33, 70, 71, 12, 90]


@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("beam_width", [1, 3, 8])
@pytest.mark.parametrize("eos_bias", [0.0, 2.0])
def test_beam_search_equals_transformers(tmp_path: Path, name: str, beam_width: int, eos_bias: float) -> None:
    """With a bias, the end of sequence is likely enough to end hypotheses early."""
    model = AutoModelForCausalLM.from_pretrained(
        Path(__file__).parents[1] / "golden" / "models" / name, dtype=torch.float32, attn_implementation="eager"
    )
    sharpness = 60.0
    head = torch.nn.Linear(model.config.hidden_size, NUM_TOKENS, bias=True)
    head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * sharpness)
    head.bias = torch.nn.Parameter(torch.nn.functional.one_hot(torch.tensor(EOS_ID), NUM_TOKENS) * eos_bias)
    model.lm_head = head
    expected = model.generate(
        torch.tensor([PROMPT]),
        num_beams=beam_width,
        num_return_sequences=beam_width,
        max_new_tokens=12,
        do_sample=False,
        early_stopping=False,
        eos_token_id=EOS_ID,
        pad_token_id=EOS_ID,
    )
    llm = LLM(str(tiny_model(tmp_path / name, name)), backend="reference", max_num_seqs=16, max_num_batched_tokens=64)
    compute_logits = llm.engine.core.executor.model.compute_logits

    def sharpened(hidden):  # type: ignore[no-untyped-def]
        logits = compute_logits(hidden) * sharpness
        logits[:, EOS_ID] += eos_bias
        return logits

    llm.engine.core.executor.model.compute_logits = sharpened
    found = llm.beam_search(PROMPT, beam_width, max_tokens=12)
    assert [beam.token_ids for beam in found] == [_generated(row) for row in expected[:, len(PROMPT) :].tolist()]
    assert llm.engine.core.scheduler.stats.num_cached_tokens > 0


def _generated(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS_ID) + 1] if EOS_ID in tokens else tokens
