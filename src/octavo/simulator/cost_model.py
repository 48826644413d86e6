"""How long a step takes.

A step's time is the sum of four parts, each with its own limit:

====================  ====================================================  ==========================================
part                  work                                                  limit
====================  ====================================================  ==========================================
dense                 weights streamed once, 2 operations per weight and    the slower of bandwidth and operations
                      token; the output matrix only for sampled rows
attention of decodes  the KV of the whole context of each, once             bandwidth
attention of a chunk  operations of all its (query, key) pairs, and its     the slower of the two
                      context's KV once
fixed                 launches, sampling, host                              a constant per step and layer
====================  ====================================================  ==========================================

This is the roofline of Williams, Waterman and Patterson (CACM 2009), applied part by part because kernels of different
parts do not overlap. It stays linear in the context of the decodes, which lets many equal steps be added up quickly.
"""

from __future__ import annotations

from typing import Protocol

from octavo.scheduler.output import SchedulerOutput
from octavo.simulator.hardware import HardwareProfile
from octavo.simulator.model_shape import ModelShape


class CostModel(Protocol):
    """Times of the parts of a step, seconds."""

    @property
    def context_token_s(self) -> float:
        """Attention of a decode, per token of its context."""

    def dense_s(self, num_tokens: int, num_samples: int) -> float:
        """Everything but attention, of a step with so many tokens of which so many are sampled."""

    def chunk_attention_s(self, start: int, num_tokens: int) -> float:
        """Attention of ``num_tokens`` consecutive tokens of a request, the first at position ``start``."""


def step_s(cost: CostModel, scheduled: SchedulerOutput) -> float:
    """Time of one step."""
    num_samples = len(scheduled.decodes)
    num_context = sum([len(request.token_ids) for request in scheduled.decodes])
    num_tokens, chunks_s = num_samples, 0.0
    for chunk in scheduled.chunks:
        num_tokens += chunk.num_tokens
        num_samples += (1 + len(chunk.forks)) if chunk.samples else 0
        chunks_s += cost.chunk_attention_s(chunk.start, chunk.num_tokens)
    return cost.dense_s(num_tokens, num_samples) + cost.context_token_s * num_context + chunks_s


def num_pairs(start: int, num_tokens: int) -> float:
    """(query, key) pairs of ``num_tokens`` causal queries from position ``start`` on."""
    return num_tokens * (start + (num_tokens + 1) / 2)


class RooflineCostModel:
    """A model's shape on a machine's profile."""

    def __init__(self, model: ModelShape, hardware: HardwareProfile) -> None:
        flops, bandwidth = hardware.flops * hardware.flops_share, hardware.bandwidth * hardware.bandwidth_share
        attention_flops = hardware.flops * hardware.attention_share
        self.context_token_s = max(
            model.kv_bytes_per_token / bandwidth, model.attention_flops_per_pair / attention_flops
        )
        self._fixed_s = hardware.step_s + hardware.layer_s * model.num_layers
        self._layer_weights_s = model.bytes_per_weight * model.num_layer_weights / bandwidth
        self._head_weights_s = model.bytes_per_weight * model.num_head_weights / bandwidth
        self._token_s = 2 * model.num_layer_weights / flops
        self._sample_s = 2 * model.num_head_weights / flops
        self._pair_s = model.attention_flops_per_pair / attention_flops
        self._kv_token_s = model.kv_bytes_per_token / bandwidth

    def dense_s(self, num_tokens: int, num_samples: int) -> float:
        """See :class:`CostModel`."""
        layers_s = max(self._layer_weights_s, self._token_s * num_tokens)
        head_s = max(self._head_weights_s, self._sample_s * num_samples) if num_samples else 0.0
        return self._fixed_s + layers_s + head_s

    def chunk_attention_s(self, start: int, num_tokens: int) -> float:
        """See :class:`CostModel`."""
        return max(self._pair_s * num_pairs(start, num_tokens), self._kv_token_s * (start + num_tokens))
