"""Octavo, for compare/run.py."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from peer import serve

from octavo import LLM, SamplingParams

sys.path.append(str(Path(__file__).parents[1]))


class Octavo:
    """The native backend; prefix caching off, so that each call computes what it is asked for."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._llm = LLM(model, backend="native", max_num_seqs=64, num_blocks=4096, enable_prefix_caching=False)

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        outputs = self._llm.generate(prompts, params, use_progress=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def logits(self, token_ids: list[int]) -> npt.NDArray[np.float32]:
        from fidelity import prefill

        from octavo.weights.loader import open_checkpoint

        backend = self._llm.engine.core.executor.backend
        pieces = prefill(open_checkpoint(Path(self._model)), backend, np.array(token_ids, np.int32))
        return np.concatenate(list(pieces))


if __name__ == "__main__":
    serve(Octavo)
