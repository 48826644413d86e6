"""From the states of the sampling requests to a :class:`SamplingBatch`; features that no row uses stay ``None``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo.backends.base import SamplingBatch
from octavo.executor.batch_builder import StepRows
from octavo.executor.random_draws import uniform_draws
from octavo.executor.request_states import Float32, Int32, RequestStates


class SamplingBuilder:
    """Builds sampling batches; as long as the same rows sample, only what a new position changes is built again."""

    def __init__(self, states: RequestStates) -> None:
        self._states = states
        self._rows: StepRows | None = None
        self._is_special = self._is_random = False
        self._batch = build_sampling_batch(states, np.zeros(0, np.int32))

    def build(self, rows: StepRows) -> SamplingBatch:
        """How each of the step's sampling slots draws its next token."""
        states, slots = self._states, rows.sampling_slots
        if rows is not self._rows or self._is_special:
            self._rows = rows
            self._is_special = bool(states.special[slots].any())
            self._batch = build_sampling_batch(states, slots)
            self._is_random = bool((self._batch.temperature > 0).any())
        elif self._is_random:
            uniform = uniform_draws(states.seeds[slots], states.num_tokens[slots])
            self._batch = replace(self._batch, uniform=uniform)
        return self._batch


def build_sampling_batch(states: RequestStates, slots: Int32) -> SamplingBatch:
    """How each of the slots int32 [S] samples its next token."""
    temperature = states.temperature[slots]
    history: tuple[Int32 | None, Int32 | None, Int32 | None] = (None, None, None)
    penalties: tuple[Float32 | None, Float32 | None, Float32 | None] = (None, None, None)
    bias: tuple[Int32 | None, Int32 | None, Float32 | None] = (None, None, None)
    if states.special[slots].any():
        bias = _bias(states, slots)
        history = _history(states, slots)
        if history[0] is not None:
            penalties = (
                states.repetition_penalty[slots],
                states.presence_penalty[slots],
                states.frequency_penalty[slots],
            )
    random = bool((temperature > 0).any())
    top_k, top_p, min_p = states.top_k[slots], states.top_p[slots], states.min_p[slots]
    return SamplingBatch(
        temperature=temperature,
        top_k=top_k if random and top_k.any() else None,
        top_p=top_p if random and (top_p < 1).any() else None,
        min_p=min_p if random and (min_p > 0).any() else None,
        uniform=uniform_draws(states.seeds[slots], states.num_tokens[slots]) if random else np.zeros_like(temperature),
        repetition_penalty=penalties[0],
        presence_penalty=penalties[1],
        frequency_penalty=penalties[2],
        history_starts=history[0],
        history_token_ids=history[1],
        history_counts=history[2],
        bias_starts=bias[0],
        bias_token_ids=bias[1],
        bias_values=bias[2],
        num_logprobs=int(states.num_logprobs[slots].max(initial=-1)),
    )


def _history(states: RequestStates, slots: Int32) -> tuple[Int32 | None, Int32 | None, Int32 | None]:
    """CSR of the distinct tokens so far, with how often each was generated, for the rows with penalties."""
    tokens: list[Int32] = []
    counts: list[Int32] = []
    for slot in slots.tolist():
        request = states.requests[slot]
        assert request is not None
        if request.params.needs_history:
            row = states.token_ids[slot, : states.num_tokens[slot]]
            distinct = np.unique(row)
            generated = np.searchsorted(distinct, row[request.num_prompt_tokens :])
            tokens.append(distinct)
            counts.append(np.bincount(generated, minlength=len(distinct)).astype(np.int32))
        else:
            tokens.append(np.zeros(0, np.int32))
            counts.append(np.zeros(0, np.int32))
    starts = _starts([len(row) for row in tokens])
    if starts[-1] == 0:
        return None, None, None
    return starts, np.concatenate(tokens), np.concatenate(counts)


def _bias(states: RequestStates, slots: Int32) -> tuple[Int32 | None, Int32 | None, Float32 | None]:
    """CSR of logit biases; the ban of stop tokens before ``min_tokens`` is a bias of minus infinity."""
    rows: list[dict[int, float]] = []
    for slot in slots.tolist():
        request = states.requests[slot]
        assert request is not None
        row = dict(request.params.logit_bias or {})
        if states.num_tokens[slot] - request.num_prompt_tokens < request.params.min_tokens:
            row.update(dict.fromkeys(sorted(request.stop_ids), -np.inf))
        rows.append(row)
    starts = _starts([len(row) for row in rows])
    if starts[-1] == 0:
        return None, None, None
    token_ids = np.array([token_id for row in rows for token_id in row], np.int32)
    return starts, token_ids, np.array([value for row in rows for value in row.values()], np.float32)


def _starts(lengths: list[int]) -> Int32:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
