"""vLLM's CPU build, for compare/run.py: the bfloat16 twin."""

from __future__ import annotations

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import numpy.typing as npt
from peer import serve
from vllm import LLM, SamplingParams


class VLLM:
    """Its offline engine in this process; prefix caching off, so that each call computes what it is asked for."""

    def __init__(self, folder: str) -> None:
        self._llm = LLM(
            folder,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=2048,
            max_num_seqs=64,
            enable_prefix_caching=False,
            max_logprobs=-1,
        )

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [list(output.outputs[0].token_ids) for output in self._llm.generate(requests, params, use_tqdm=False)]

    def logits(self, token_ids: list[int]) -> npt.NDArray[np.float32]:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=-1, logprobs=-1, detokenize=False)
        output = self._llm.generate([{"prompt_token_ids": token_ids}], params, use_tqdm=False)[0]
        assert output.prompt_logprobs is not None
        rows = [*output.prompt_logprobs[1:], output.outputs[0].logprobs[0]]
        logits = np.empty((len(rows), len(rows[0])), np.float32)
        for row, candidates in zip(logits, rows, strict=True):
            for token_id, candidate in candidates.items():
                row[token_id] = candidate.logprob
        return logits


if __name__ == "__main__":
    serve(VLLM)
