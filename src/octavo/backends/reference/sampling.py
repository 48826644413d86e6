"""How a token is chosen, one row of logits at a time. This file is the definition that other backends follow.

    raw logits
      → penalties            repetition, then presence and frequency
      → bias                 -inf bans a token
      → greedy?              the largest logit, the lowest id among equals: done
      → divide by temperature, softmax
      → min_p, top_k, top_p  each looks at what the one before has kept, with probabilities summing to 1 again
      → one draw             by inversion of the cumulative distribution over the kept tokens, in ascending id order

"Most likely first" always means: by descending logit, equal ones by ascending id. Probabilities and their sums are
float64, so that a draw at the edge of two tokens does not depend on the order of a sum.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.backends.base import Float32, Int32, SampleOutput, SamplingBatch
from octavo.errors import BackendError

Float64 = npt.NDArray[np.float64]


def sample(logits: Float32, sampling: SamplingBatch) -> SampleOutput:
    """Choose a token per row of logits [S, V]."""
    refuse_damaged(logits)
    token_ids = np.array([choose_token(logits[row], sampling, row) for row in range(len(logits))], np.int32)
    if sampling.num_logprobs < 0:
        return SampleOutput(token_ids)
    return log_probabilities(logits, token_ids, sampling.num_logprobs)


def log_probabilities(logits: Float32, token_ids: Int32, num_logprobs: int) -> SampleOutput:
    """Log-softmax of logits [S, V] at the given tokens [S] and at the ``num_logprobs`` most likely ones of each row."""
    refuse_damaged(logits)
    rows = np.arange(len(logits))
    order = np.argsort(-logits, axis=-1, kind="stable")  # stable: equal logits by ascending id
    ranks = 1 + np.argmax(order == token_ids[:, np.newaxis], axis=-1)
    reported = np.concatenate([token_ids[:, np.newaxis], order[:, :num_logprobs]], axis=1)

    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return SampleOutput(
        token_ids=token_ids,
        logprob_token_ids=reported.astype(np.int32),
        logprobs=log_softmax[rows[:, np.newaxis], reported].astype(np.float32),
        ranks=ranks.astype(np.int32),
    )


def choose_token(raw_logits: Float32, sampling: SamplingBatch, row: int) -> int:
    """One row: raw_logits [V] → token id."""
    logits = add_bias(penalize(raw_logits, sampling, row), sampling, row)
    if logits.max() == -np.inf:
        raise BackendError(f"no token is left for row {row}: logit_bias bans them all")
    temperature = sampling.temperature[row]
    if temperature == 0:
        return int(logits.argmax())  # the first of equals

    probabilities = softmax(logits / temperature)
    if sampling.min_p is not None and sampling.min_p[row] > 0:
        probabilities = keep_min_p(probabilities, float(sampling.min_p[row]))
    if sampling.top_k is not None and sampling.top_k[row] > 0:
        probabilities = keep_top_k(probabilities, int(sampling.top_k[row]))
    if sampling.top_p is not None and sampling.top_p[row] < 1:
        probabilities = keep_top_p(probabilities, float(sampling.top_p[row]))
    return draw(probabilities, float(sampling.uniform[row]))


def penalize(logits: Float32, sampling: SamplingBatch, row: int) -> Float32:
    """Apply the penalties to a copy of logits [V].

    ``repetition_penalty`` (Keskar et al., 2019) divides the positive and multiplies the negative logits of all tokens
    so far, the prompt's included; the other two subtract from generated tokens: once, and per occurrence.
    """
    logits = logits.copy()
    if sampling.history_starts is None or sampling.history_token_ids is None or sampling.history_counts is None:
        return logits
    entries = slice(sampling.history_starts[row], sampling.history_starts[row + 1])
    seen, counts = sampling.history_token_ids[entries], sampling.history_counts[entries]
    if sampling.repetition_penalty is not None:
        penalty = sampling.repetition_penalty[row]
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    if sampling.presence_penalty is not None:
        logits[seen] -= sampling.presence_penalty[row] * (counts > 0)
    if sampling.frequency_penalty is not None:
        logits[seen] -= sampling.frequency_penalty[row] * counts.astype(np.float32)
    return logits


def add_bias(logits: Float32, sampling: SamplingBatch, row: int) -> Float32:
    """Add the row's biases to logits [V]; a token that is listed twice gets both."""
    if sampling.bias_starts is None or sampling.bias_token_ids is None or sampling.bias_values is None:
        return logits
    entries = slice(sampling.bias_starts[row], sampling.bias_starts[row + 1])
    biased = logits.copy()
    np.add.at(biased, sampling.bias_token_ids[entries], sampling.bias_values[entries])
    return biased


def softmax(logits: Float32) -> Float64:
    """Probabilities of logits [V]."""
    exponentials = np.exp(logits.astype(np.float64) - float(logits.max()))
    result: Float64 = exponentials / exponentials.sum()
    return result


def keep_min_p(probabilities: Float64, min_p: float) -> Float64:
    """Keep tokens at least ``min_p`` times as likely as the most likely one."""
    return renormalize(probabilities, probabilities >= min_p * probabilities.max())


def keep_top_k(probabilities: Float64, top_k: int) -> Float64:
    """Keep the ``top_k`` most likely tokens."""
    return renormalize(probabilities, ranks_of(probabilities) < top_k)


def keep_top_p(probabilities: Float64, top_p: float) -> Float64:
    """Keep the most likely tokens up to and including the one at which their sum reaches ``top_p``."""
    order = np.argsort(-probabilities, kind="stable")
    sum_before = np.zeros_like(probabilities)
    sum_before[order[1:]] = np.cumsum(probabilities[order])[:-1]
    sum_before[order[0]] = -1.0  # the most likely token always stays
    return renormalize(probabilities, sum_before < top_p)


def ranks_of(probabilities: Float64) -> npt.NDArray[np.int64]:
    """0 for the most likely token, 1 for the next …"""
    ranks = np.empty(len(probabilities), np.int64)
    ranks[np.argsort(-probabilities, kind="stable")] = np.arange(len(probabilities))
    return ranks


def renormalize(probabilities: Float64, kept: npt.NDArray[np.bool_]) -> Float64:
    """Zero what is not kept and let the rest sum to 1."""
    remaining = np.where(kept, probabilities, 0.0)
    result: Float64 = remaining / remaining.sum()
    return result


def draw(probabilities: Float64, uniform: float) -> int:
    """The first token, in id order, at which the cumulative probability exceeds ``uniform`` in [0, 1)."""
    cumulative = np.cumsum(probabilities)
    chosen = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    last_possible = int(np.flatnonzero(probabilities)[-1])  # rounding may leave the sum below ``uniform``
    return min(chosen, last_possible)


def refuse_damaged(logits: Float32) -> None:
    """A NaN or an infinity means that the model or a kernel went wrong; a token chosen from it would be garbage."""
    largest = logits.max(axis=-1)  # of a row with a NaN, it is NaN
    rows = np.flatnonzero(~np.isfinite(largest))
    if len(rows):
        raise BackendError(
            f"the largest logit of row {rows[0]} is {largest[rows[0]]}: the model's weights are damaged, or a "
            "computation overflowed"
        )
