"""Choosing tokens for all rows at once, on the device. ``octavo.backends.reference.sampling`` defines what it does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from octavo.backends.base import Float32, Int32, SampleOutput, SamplingBatch
from octavo.errors import BackendError


def sample(logits: torch.Tensor, sampling: SamplingBatch) -> SampleOutput:
    """Choose a token per row of logits [S, V]."""
    refuse_damaged(logits)
    adjusted = _add_bias(_penalize(logits, sampling), sampling)
    if bool((adjusted.amax(dim=-1) == -torch.inf).any()):
        raise BackendError("no token is left for a row: logit_bias bans them all")
    chosen = adjusted.argmax(dim=-1)
    if bool((sampling.temperature > 0).any()):
        temperature = _column(sampling.temperature, logits)
        probabilities = torch.softmax(adjusted.double() / torch.where(temperature > 0, temperature, 1.0), dim=-1)
        drawn = _draw(_filter(probabilities, sampling), _column(sampling.uniform, logits))
        chosen = torch.where(temperature[:, 0] > 0, drawn, chosen)
    token_ids = chosen.cpu().numpy().astype(np.int32)
    if sampling.num_logprobs < 0:
        return SampleOutput(token_ids)
    return log_probabilities(logits, token_ids, sampling.num_logprobs)


def log_probabilities(logits: torch.Tensor, token_ids: Int32, num_logprobs: int) -> SampleOutput:
    """Log-softmax of logits [S, V] at the given tokens [S] and at the ``num_logprobs`` most likely ones of each row."""
    refuse_damaged(logits)
    order = torch.sort(logits, dim=-1, descending=True, stable=True).indices
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)[:, None]
    ranks = 1 + (order == chosen).int().argmax(dim=-1)
    reported = torch.cat([chosen, order[:, :num_logprobs]], dim=1)
    values = torch.log_softmax(logits.double(), dim=-1).gather(1, reported)
    return SampleOutput(
        token_ids=token_ids,
        logprob_token_ids=reported.cpu().numpy().astype(np.int32),
        logprobs=values.cpu().numpy().astype(np.float32),
        ranks=ranks.cpu().numpy().astype(np.int32),
    )


def refuse_damaged(logits: torch.Tensor) -> None:
    """A NaN or an infinity means that the model or a kernel went wrong."""
    largest = logits.amax(dim=-1)
    rows = torch.nonzero(~torch.isfinite(largest)).flatten().tolist()
    if rows:
        raise BackendError(
            f"the largest logit of row {rows[0]} is {float(largest[rows[0]])}: the model's weights are damaged, or a "
            "computation overflowed"
        )


def _column(values: npt.NDArray[np.generic], like: torch.Tensor) -> torch.Tensor:
    """Per-row host values [S] as float64 [S, 1] on the device."""
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]


def _penalize(logits: torch.Tensor, sampling: SamplingBatch) -> torch.Tensor:
    if sampling.history_starts is None or sampling.history_token_ids is None or sampling.history_counts is None:
        return logits
    rows = _rows_of_entries(sampling.history_starts)
    index = _index(rows, sampling.history_token_ids, logits)
    counts = sampling.history_counts
    values = logits[index]
    if sampling.repetition_penalty is not None:
        penalty = _entries(sampling.repetition_penalty[rows], logits)
        values = torch.where(values > 0, values / penalty, values * penalty)
    if sampling.presence_penalty is not None:
        values = values - _entries(sampling.presence_penalty[rows] * (counts > 0), logits)
    if sampling.frequency_penalty is not None:
        values = values - _entries(sampling.frequency_penalty[rows] * counts, logits)
    return logits.index_put(index, values)  # a row lists a token once


def _add_bias(logits: torch.Tensor, sampling: SamplingBatch) -> torch.Tensor:
    if sampling.bias_starts is None or sampling.bias_token_ids is None or sampling.bias_values is None:
        return logits
    index = _index(_rows_of_entries(sampling.bias_starts), sampling.bias_token_ids, logits)
    return logits.index_put(index, _entries(sampling.bias_values, logits), accumulate=True)


def _rows_of_entries(starts: Int32) -> npt.NDArray[np.int64]:
    """The row of each entry of a CSR list."""
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def _index(rows: npt.NDArray[np.int64], token_ids: Int32, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(i, dtype=torch.int64, device=like.device) for i in (rows, token_ids))


def _entries(values: Float32, like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device)


def _filter(probabilities: torch.Tensor, sampling: SamplingBatch) -> torch.Tensor:
    """min_p, top_k, top_p on probabilities [S, V]; what is dropped becomes 0, the rest is left as it is."""
    if sampling.min_p is not None:
        floor = _column(sampling.min_p, probabilities) * probabilities.amax(dim=-1, keepdim=True)
        probabilities = torch.where(probabilities >= floor, probabilities, 0.0)
    if sampling.top_k is None and sampling.top_p is None:
        return probabilities

    descending, order = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    if sampling.top_k is not None:
        vocabulary = probabilities.shape[-1]
        top_k = _column(np.where(sampling.top_k > 0, sampling.top_k, vocabulary), probabilities)
        ranks = torch.arange(vocabulary, device=probabilities.device)
        descending = torch.where(ranks < top_k, descending, 0.0)
    if sampling.top_p is not None:
        # "Reaches top_p" is meant of what is left by now, so the bound is a share of its sum. 1 keeps all.
        top_p = _column(np.where(sampling.top_p < 1, sampling.top_p, np.inf), probabilities)
        bound = top_p * descending.sum(dim=-1, keepdim=True)
        sum_before = descending.cumsum(dim=-1) - descending
        sum_before[:, 0] = 0.0  # the most likely token always stays
        descending = torch.where(sum_before < bound, descending, 0.0)
    return torch.zeros_like(probabilities).scatter(1, order, descending)


def _draw(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first token of each row, in id order, at which the cumulative sum exceeds ``uniform`` times the total."""
    cumulative = probabilities.cumsum(dim=-1)
    chosen = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0]
    ids = torch.arange(probabilities.shape[-1], device=probabilities.device)
    last_possible = torch.where(probabilities > 0, ids, 0).amax(dim=-1)
    return torch.minimum(chosen, last_possible)
