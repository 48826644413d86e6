"""Paged attention with plain tensor ops.

A step's requests are put into groups: all that have one new token (decodes) together, each longer run (prefill) alone.
A group is one dense computation. Its index tensors are the same for every layer, so they are made once per step:
:class:`AttentionPlan`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from octavo.backends.base import Batch
from octavo.backends.torch.kv_cache import TorchKVCache


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """G requests with Q new tokens each, whose contexts are padded to C positions.

    Attributes:
        tokens: int64 [G, Q]: rows of the batch.
        slots: int64 [G * C]: where the contexts lie; padding repeats a request's last slot, which is always written.
        visible: bool [G, 1, 1, Q, C]: which of its context each token sees.
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    visible: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The groups of one batch, for layers of one sliding window."""

    batch: Batch
    block_size: int
    sliding_window: int | None
    groups: list[RequestGroup]

    def fits(self, batch: Batch, block_size: int, sliding_window: int | None) -> bool:
        """Whether it was made for this very batch."""
        return self.batch is batch and (self.block_size, self.sliding_window) == (block_size, sliding_window)


def make_plan(batch: Batch, block_size: int, sliding_window: int | None) -> AttentionPlan:
    """Group the batch's requests. Waits for the device once, to read the lengths."""
    starts = batch.query_start_loc.tolist()
    query_lens = [end - start for start, end in itertools.pairwise(starts)]
    decodes = [request for request, query_len in enumerate(query_lens) if query_len == 1]
    prefills = [[request] for request, query_len in enumerate(query_lens) if query_len > 1]
    groups = [
        _make_group(batch, requests, query_lens[requests[0]], block_size, sliding_window)
        for requests in ([decodes] if decodes else []) + prefills
    ]
    return AttentionPlan(batch, block_size, sliding_window, groups)


def _make_group(
    batch: Batch, requests: list[int], query_len: int, block_size: int, sliding_window: int | None
) -> RequestGroup:
    device = batch.positions.device
    rows = torch.tensor(requests, device=device)
    tokens = batch.query_start_loc[rows].long()[:, None] + torch.arange(query_len, device=device)
    positions = batch.positions[tokens]  # [G, Q]
    seq_lens = batch.seq_lens[rows][:, None]  # [G, 1]

    # Slots that no new token can see are not touched: their blocks may belong to someone else by now.
    first = torch.zeros_like(seq_lens) if sliding_window is None else (positions[:, :1] - sliding_window + 1).clamp(0)
    context_len = int((seq_lens - first).max())
    context = first + torch.arange(context_len, device=device, dtype=first.dtype)  # [G, C]
    distance = positions[:, :, None] - context[:, None, :]  # [G, Q, C]
    visible = distance >= 0  # hides the padding too: no token's position reaches past its seq_len
    if sliding_window is not None:
        visible &= distance < sliding_window

    context = torch.minimum(context, seq_lens - 1).long()
    blocks = torch.gather(batch.block_tables[rows].long(), 1, context // block_size)
    slots = blocks * block_size + context % block_size
    return RequestGroup(tokens, slots.flatten(), visible[:, None, None])


def paged_attention(
    q: torch.Tensor, kv_cache: TorchKVCache, layer: int, plan: AttentionPlan, scale: float
) -> torch.Tensor:
    """q [T, num_heads, head_dim] → [T, num_heads * head_dim]."""
    output = torch.empty((q.shape[0], q.shape[1] * q.shape[2]), dtype=torch.float32, device=q.device)
    for group in plan.groups:
        num_requests = group.tokens.shape[0]
        keys, values = (torch.unflatten(x, 0, (num_requests, -1)) for x in kv_cache.gather(layer, group.slots))
        output[group.tokens] = _attention(q[group.tokens], keys, values, group.visible, scale)
    return output


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, scale: float) -> torch.Tensor:
    """Grouped-query attention; below, ``k`` counts KV heads and ``n`` the query heads that share one.

    q [G, Q, num_heads, head_dim]; k, v [G, C, num_kv_heads, head_dim]; visible [G, 1, 1, Q, C]
    → [G, Q, num_heads * head_dim].
    """
    q = torch.unflatten(q, 2, (k.shape[2], -1))
    scores = torch.einsum("gqknd,gckd->gknqc", q, k) * scale
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("gknqc,gckd->gqknd", weights, v).flatten(2)
