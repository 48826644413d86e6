"""Paged attention, one request at a time: gather its context through the block table, then plain attention."""

from __future__ import annotations

import numpy as np

from octavo.backends.base import Batch, Float32, Int32
from octavo.backends.reference.kv_cache import ReferenceKVCache


def paged_attention(
    q: Float32, kv_cache: ReferenceKVCache, layer: int, batch: Batch, scale: float, sliding_window: int | None
) -> Float32:
    """q [T, num_heads, head_dim] → [T, num_heads * head_dim]. ``octavo.backends.base`` has the details."""
    output = np.empty((q.shape[0], q.shape[1] * q.shape[2]), np.float32)
    for request in range(batch.num_requests):
        tokens = slice(batch.query_start_loc[request], batch.query_start_loc[request + 1])
        positions = batch.positions[tokens]
        # Slots that no new token can see are not touched: their blocks may belong to someone else by now.
        first_position = 0 if sliding_window is None else max(0, int(positions[0]) - sliding_window + 1)
        context = np.arange(first_position, batch.seq_lens[request], dtype=np.int32)
        block = batch.block_tables[request][context // kv_cache.spec.block_size]
        offset = context % kv_cache.spec.block_size
        keys = kv_cache.keys[layer, block, offset]  # [context, num_kv_heads, head_dim]
        values = kv_cache.values[layer, block, offset]
        visible = visible_positions(positions, context, sliding_window)
        output[tokens] = attention(q[tokens], keys, values, visible, scale).reshape(-1, output.shape[1])
    return output


def visible_positions(queries: Int32, context: Int32, sliding_window: int | None) -> np.ndarray:
    """Which context positions each query position sees: bool [queries, context]."""
    distance = queries[:, np.newaxis] - context[np.newaxis, :]
    visible = distance >= 0
    if sliding_window is not None:
        visible &= distance < sliding_window
    return visible


def attention(q: Float32, k: Float32, v: Float32, visible: np.ndarray, scale: float) -> Float32:
    """Grouped-query attention of one request.

    q [queries, num_heads, head_dim]; k, v [context, num_kv_heads, head_dim]; visible [queries, context]
    → [queries, num_heads, head_dim].
    """
    queries_per_kv_head = q.shape[1] // k.shape[1]
    k = np.repeat(k, queries_per_kv_head, axis=1)
    v = np.repeat(v, queries_per_kv_head, axis=1)
    scores = np.matmul(q.transpose(1, 0, 2), k.transpose(1, 2, 0)) * np.float32(scale)  # [heads, queries, context]
    scores = np.where(visible, scores, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    result: Float32 = np.matmul(weights, v.transpose(1, 0, 2)).transpose(1, 0, 2)
    return result
