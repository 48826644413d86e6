"""llama.cpp, for compare/run.py: the same GGUF file, many sequences in one context."""

from __future__ import annotations

import ctypes
import os

import llama_cpp
import numpy as np
import numpy.typing as npt
from peer import serve

MAX_SEQUENCES, TOKENS_PER_SEQUENCE, BATCH = 64, 1024, 2048


class LlamaCpp:
    """Its C interface: the Python class of the package decodes one sequence only."""

    def __init__(self, model: str) -> None:
        llama_cpp.llama_backend_init()
        self._log = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))
        self._model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = MAX_SEQUENCES * TOKENS_PER_SEQUENCE, BATCH, 512
        params.n_seq_max = MAX_SEQUENCES
        params.kv_unified = False  # its header recommends this for sequences with nothing in common
        params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._num_vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        self._forget()
        outputs: list[list[int]] = [[] for _ in prompts]
        tokens = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        for start in range(0, len(tokens), BATCH):
            piece = tokens[start : start + BATCH]
            logits = self._decode(piece)
            wanted = [sequence for _, _, sequence, samples in piece if samples]
            for sequence, token in zip(wanted, logits.argmax(axis=1).tolist() if wanted else [], strict=True):
                outputs[sequence].append(token)
        while len(outputs[0]) < max_tokens:
            step = [
                (output[-1], len(prompts[sequence]) + len(output) - 1, sequence, True)
                for sequence, output in enumerate(outputs)
            ]
            for output, token in zip(outputs, self._decode(step).argmax(axis=1).tolist(), strict=True):
                output.append(token)
        return outputs

    def logits(self, token_ids: list[int]) -> npt.NDArray[np.float32]:
        self._forget()
        pieces = []
        for start in range(0, len(token_ids), 256):
            piece = token_ids[start : start + 256]
            pieces.append(self._decode([(token, start + i, 0, True) for i, token in enumerate(piece)]).copy())
        return np.concatenate(pieces)

    def _forget(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def _decode(self, tokens: list[tuple[int, int, int, bool]]) -> npt.NDArray[np.float32]:
        """(token, position, sequence, whether its logits are wanted) → the wanted logits, in order."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, (token, position, sequence, samples) in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = samples
        status = llama_cpp.llama_decode(self._context, batch)
        assert status == 0, f"llama_decode returned {status}"
        num_rows = sum(samples for *_, samples in tokens)
        if num_rows == 0:
            return np.empty((0, self._num_vocabulary), np.float32)
        pointer = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, (num_rows, self._num_vocabulary))


if __name__ == "__main__":
    serve(LlamaCpp)
