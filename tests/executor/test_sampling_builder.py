"""From the requests of a step to a sampling batch, by literal contents."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.running_requests import running

from octavo.backends.base import SamplingBatch
from octavo.executor.batch_builder import BatchBuilder
from octavo.executor.random_draws import uniform_draws
from octavo.executor.request_states import RequestStates
from octavo.executor.sampling_builder import SamplingBuilder, build_sampling_batch
from octavo.sampling_params import SamplingParams
from octavo.scheduler.output import SchedulerOutput

ALL_NONE = [
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "history_starts",
    "history_token_ids",
    "history_counts",
    "bias_starts",
    "bias_token_ids",
    "bias_values",
]


@pytest.fixture
def states() -> RequestStates:
    return RequestStates(max_num_seqs=4, max_model_len=20, max_blocks=5)


def batch_of(states: RequestStates, *slots: int) -> SamplingBatch:
    return build_sampling_batch(states, np.array(slots, np.int32))


@pytest.mark.parametrize("temperatures", [(0.0, 0.0), (0.0, 0.7)])
@pytest.mark.parametrize("presence_penalty", [0.0, 0.5])
def test_what_is_kept_from_step_to_step_equals_what_is_built_anew(
    states: RequestStates, temperatures: tuple[float, float], presence_penalty: float
) -> None:
    """Two decodes, step after step, then one of them alone, then both again."""
    both = [
        running(states, slot, [5, 6], [7], [0], 2, SamplingParams(temperature=t, presence_penalty=presence_penalty))
        for slot, t in zip((2, 0), temperatures, strict=True)
    ]
    rows_builder, builder = BatchBuilder(states, 4), SamplingBuilder(states)
    for decodes in [both, both, both, both[:1], both, both]:
        rows = rows_builder.rows(SchedulerOutput(1, decodes))
        batch, anew = builder.build(rows), build_sampling_batch(states, rows.sampling_slots)
        for field in dataclasses.fields(batch):
            np.testing.assert_array_equal(getattr(batch, field.name), getattr(anew, field.name), field.name)
        sampled = np.arange(20, 20 + len(decodes), dtype=np.int32)
        states.advance(rows.slots, rows.num_scheduled, rows.sampling_slots, sampled)


def test_greedy_requests_need_nothing(states: RequestStates) -> None:
    running(states, 0, [5, 6], [], [0], 1)
    running(states, 2, [5], [], [1], 0)
    batch = batch_of(states, 0, 2)
    assert batch.temperature.tolist() == [0, 0]
    assert batch.uniform.tolist() == [0, 0]
    assert batch.num_logprobs == -1
    assert [getattr(batch, name) for name in ALL_NONE] == [None] * len(ALL_NONE)


def test_draws_are_those_of_seed_and_position(states: RequestStates) -> None:
    running(states, 0, [5, 6], [7], [0], 2, SamplingParams(temperature=0.5), seed=3)
    running(states, 1, [5], [], [1], 0, SamplingParams(temperature=2), seed=2**64 - 1)
    running(states, 3, [5], [], [1], 0)
    batch = batch_of(states, 1, 3, 0)
    assert batch.temperature.tolist() == [2, 0, 0.5]
    seeds, positions = np.array([2**64 - 1, 0, 3], np.uint64), np.array([1, 1, 3])
    assert batch.uniform.tolist() == uniform_draws(seeds, positions).tolist()
    assert batch_of(states, 0).uniform.tolist() == batch.uniform[2:].tolist()


def test_columns_appear_when_somebody_uses_them(states: RequestStates) -> None:
    running(states, 0, [5], [], [0], 0, SamplingParams(top_k=7))
    running(states, 1, [5], [], [0], 0, SamplingParams(top_p=0.5))
    running(states, 2, [5], [], [0], 0, SamplingParams(min_p=0.25, logprobs=4))
    running(states, 3, [5], [], [0], 0, SamplingParams(temperature=0, top_k=3, top_p=0.5, min_p=0.5, logprobs=0))
    batch = batch_of(states, 0, 1, 2)
    assert batch.top_k is not None
    assert batch.top_p is not None
    assert batch.min_p is not None
    assert batch.top_k.tolist() == [7, 0, 0]
    assert batch.top_p.tolist() == [1, 0.5, 1]
    assert batch.min_p.tolist() == [0, 0, 0.25]
    assert batch.num_logprobs == 4
    greedy = batch_of(states, 3)
    assert (greedy.top_k, greedy.top_p, greedy.min_p, greedy.num_logprobs) == (None, None, None, 0)
    assert batch_of(states, 0).top_p is None


def test_history_has_each_token_once_with_how_often_it_was_generated(states: RequestStates) -> None:
    running(states, 0, [9, 5, 9], [5, 2, 5], [0, 1], 5, SamplingParams(temperature=0, frequency_penalty=0.5))
    running(states, 1, [4], [4], [2], 1)
    running(states, 2, [7], [], [3], 0, SamplingParams(temperature=0, repetition_penalty=2.0))
    batch = batch_of(states, 0, 1, 2)
    assert batch.history_starts is not None
    assert batch.history_token_ids is not None
    assert batch.history_counts is not None
    assert batch.repetition_penalty is not None
    assert batch.presence_penalty is not None
    assert batch.frequency_penalty is not None
    assert batch.history_starts.tolist() == [0, 3, 3, 4]
    assert batch.history_token_ids.tolist() == [2, 5, 9, 7]
    assert batch.history_counts.tolist() == [1, 2, 0, 0]
    assert batch.repetition_penalty.tolist() == [1, 1, 2]
    assert batch.presence_penalty.tolist() == [0, 0, 0]
    assert batch.frequency_penalty.tolist() == [0.5, 0, 0]
    for name in ("history_starts", "history_token_ids", "history_counts"):
        assert getattr(batch, name).dtype == np.int32


def test_biases_and_the_ban_of_what_would_stop(states: RequestStates) -> None:
    params = SamplingParams(temperature=0, logit_bias={8: 1.5, 3: -2.0}, min_tokens=2, stop_token_ids=[8, 4])
    running(states, 0, [5], [6], [0], 1, params, eos_token_ids=[1])
    running(states, 1, [5], [6, 7], [0], 2, params, eos_token_ids=[1])
    running(states, 2, [5], [], [0], 0)
    batch = batch_of(states, 0, 2, 1)
    assert batch.bias_starts is not None
    assert batch.bias_token_ids is not None
    assert batch.bias_values is not None
    assert batch.bias_starts.tolist() == [0, 4, 4, 6]
    first = dict(zip(batch.bias_token_ids[:4].tolist(), batch.bias_values[:4].tolist(), strict=True))
    assert first == {8: -np.inf, 3: -2.0, 1: -np.inf, 4: -np.inf}
    second = dict(zip(batch.bias_token_ids[4:].tolist(), batch.bias_values[4:].tolist(), strict=True))
    assert second == {8: 1.5, 3: -2.0}
    assert batch.bias_values.dtype == np.float32
    assert batch.history_starts is None


def test_after_min_tokens_nothing_is_left_of_it(states: RequestStates) -> None:
    running(states, 0, [5], [6], [0], 1, SamplingParams(temperature=0, min_tokens=1), eos_token_ids=[1])
    batch = batch_of(states, 0)
    assert [getattr(batch, name) for name in ALL_NONE] == [None] * len(ALL_NONE)
