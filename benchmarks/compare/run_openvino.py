"""OpenVINO GenAI, for compare/run.py: the same GGUF file, continuous batching."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino_genai as genai
from peer import serve


class OpenVINO:
    """``LLMPipeline`` over its continuous batching backend; it does not give logits."""

    def __init__(self, model: str) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2  # GB
        scheduler.max_num_seqs = 64
        scheduler.max_num_batched_tokens = 512
        scheduler.enable_prefix_caching = False
        self._pipeline = genai.LLMPipeline(model, "CPU", scheduler_config=scheduler)

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        input_ids = np.array(prompts, np.int64)
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        inputs = genai.TokenizedInputs(ov.Tensor(input_ids), ov.Tensor(np.ones_like(input_ids)))
        return [list(tokens) for tokens in self._pipeline.generate(inputs, config).tokens]

    def logits(self, token_ids: list[int]) -> None:
        return None


if __name__ == "__main__":
    serve(OpenVINO)
