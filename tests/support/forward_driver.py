"""Drives a model by hand, without scheduler or executor: one request, its blocks scattered over a small pool."""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Backend, Batch
from octavo.models.registry import Model


class ForwardDriver:
    """One request's way through a model, any number of tokens at a time.

    Args:
        max_tokens: longest the request will get; its blocks are taken at once, in random order.
    """

    def __init__(self, model: Model, backend: Backend, max_tokens: int, block_size: int = 16) -> None:
        self.model, self.backend, self.block_size = model, backend, block_size
        num_blocks = -(-max_tokens // block_size)
        spec = model.kv_cache_spec(num_blocks + 2, block_size, backend.default_kv_cache_dtype)
        self.kv_cache = backend.allocate_kv_cache(spec)
        self.block_table = np.random.default_rng(0).permutation(num_blocks + 2)[:num_blocks].astype(np.int32)
        self.num_computed_tokens = 0

    def forward(self, token_ids: np.ndarray) -> np.ndarray:
        """Append tokens [T] to the request → float32 logits [T, V] after each of them."""
        start, end = self.num_computed_tokens, self.num_computed_tokens + len(token_ids)
        positions = np.arange(start, end, dtype=np.int32)
        slots = self.block_table[positions // self.block_size] * self.block_size + positions % self.block_size
        bring = self.backend.from_host
        batch = Batch(
            input_ids=bring(np.asarray(token_ids, np.int32)),
            positions=bring(positions),
            slot_mapping=bring(slots.astype(np.int32)),
            block_tables=bring(self.block_table[np.newaxis]),
            seq_lens=bring(np.array([end], np.int32)),
            query_start_loc=bring(np.array([0, len(token_ids)], np.int32)),
            num_tokens=len(token_ids),
            num_requests=1,
            max_query_len=len(token_ids),
            max_seq_len=end,
        )
        self.num_computed_tokens = end
        hidden = self.model.forward(batch, self.kv_cache)
        logits: np.ndarray = self.backend.to_host(self.model.compute_logits(hidden))
        return logits

    def prefill(self, token_ids: np.ndarray, chunk_size: int) -> np.ndarray:
        """Append tokens in chunks → logits [T, V]."""
        chunks = [token_ids[start : start + chunk_size] for start in range(0, len(token_ids), chunk_size)]
        return np.concatenate([self.forward(chunk) for chunk in chunks])

    def generate(self, token_ids: np.ndarray, num_tokens: int) -> list[int]:
        """Append a prompt, then greedily so many tokens, one at a time."""
        logits = self.forward(token_ids)
        generated = [int(logits[-1].argmax())]
        while len(generated) < num_tokens:
            generated.append(int(self.forward(np.array(generated[-1:]))[-1].argmax()))
        return generated
