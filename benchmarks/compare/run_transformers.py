"""Hugging Face transformers, for compare/run.py: the bfloat16 twin, as PyTorch runs it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from peer import serve
from transformers import AutoModelForCausalLM


class Transformers:
    """Batched ``generate`` on a folder."""

    def __init__(self, folder: str) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        input_ids = torch.tensor(prompts)
        outputs = self._model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return outputs[:, input_ids.shape[1] :].tolist()

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> npt.NDArray[np.float32]:
        return self._model(torch.tensor([token_ids])).logits[0].float().numpy()


if __name__ == "__main__":
    serve(Transformers)
