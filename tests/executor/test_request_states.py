"""What the executor remembers: rows of slots, by literal numbers."""

from __future__ import annotations

import numpy as np
import pytest
from support.running_requests import running

from octavo.executor.request_states import RequestStates
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.output import TableUpdate


@pytest.fixture
def states() -> RequestStates:
    return RequestStates(max_num_seqs=3, max_model_len=8, max_blocks=3)


def test_a_request_takes_a_row(states: RequestStates) -> None:
    params = SamplingParams(temperature=0.5, top_k=-1, top_p=0.25, min_p=0.125, logprobs=3, presence_penalty=1.5)
    running(states, 1, [5, 6, 7], [8], [2, 0], 3, params, seed=-1)
    assert states.token_ids[1, :5].tolist() == [5, 6, 7, 8, 0]
    assert (states.num_tokens[1], states.num_computed_tokens[1]) == (4, 3)
    assert states.block_tables[1].tolist() == [2, 0, 0]
    assert (states.temperature[1], states.top_k[1], states.top_p[1], states.min_p[1]) == (0.5, 0, 0.25, 0.125)
    assert (states.repetition_penalty[1], states.presence_penalty[1], states.frequency_penalty[1]) == (1, 1.5, 0)
    assert states.seeds[1] == 2**64 - 1
    assert states.num_logprobs[1] == 3
    assert states.special.tolist() == [False, True, False]


def test_a_row_forgets_who_had_it_before(states: RequestStates) -> None:
    running(states, 1, [5] * 8, [], [2, 1, 0], 8, SamplingParams(logit_bias={3: 1.0}, logprobs=2, top_k=4), seed=9)
    second = running(states, 1, [6], [], [1], 0)
    assert (states.num_tokens[1], states.num_computed_tokens[1]) == (1, 0)
    assert (states.temperature[1], states.top_k[1], states.num_logprobs[1], states.seeds[1]) == (0, 0, -1, 0)
    assert not states.special[1]
    assert states.requests == [None, second, None]


@pytest.mark.parametrize(
    ("keywords", "special"),
    [
        ({}, False),
        ({"top_k": 5, "min_p": 0.1}, False),
        ({"logit_bias": {}}, False),
        ({"logit_bias": {1: 0.5}}, True),
        ({"min_tokens": 1}, True),
        ({"repetition_penalty": 1.1}, True),
    ],
)
def test_who_needs_more_than_columns(states: RequestStates, keywords: dict[str, object], special: bool) -> None:
    running(states, 0, [5], [], [0], 0, SamplingParams(**keywords))  # type: ignore[arg-type]
    assert states.special[0] == special


def test_tables_are_updated_in_place(states: RequestStates) -> None:
    running(states, 2, [5, 6], [], [4], 0)
    states.update_table(TableUpdate(2, 1, [7, 1]))
    assert states.block_tables[2].tolist() == [4, 7, 1]
    states.update_table(TableUpdate(2, 0, [3]))
    assert states.block_tables[2].tolist() == [3, 7, 1]


def test_a_fork_has_the_tokens_and_blocks_of_its_parent_and_parameters_of_its_own(states: RequestStates) -> None:
    running(states, 0, [5, 6, 7], [], [4, 2], 1, SamplingParams(temperature=0.5), seed=10)
    fork = Request("fork", [5, 6, 7], SamplingParams(temperature=0.75), seed=11)
    fork.slot = 2
    states.fork(0, fork)
    assert states.token_ids[2, :3].tolist() == [5, 6, 7]
    assert states.num_tokens[2] == states.num_computed_tokens[2] == 3
    assert states.num_computed_tokens[0] == 1  # the step that computes the rest is accounted for at its end
    assert states.block_tables[2].tolist() == [4, 2, 0]
    assert (states.seeds[2], states.temperature[2]) == (11, 0.75)
    states.advance(*(np.array(column, np.int32) for column in ([0], [2], [0, 2], [8, 9])))
    assert states.num_computed_tokens.tolist() == [3, 0, 3]
    assert states.num_tokens.tolist() == [4, 0, 4]
    assert states.token_ids[:, :5].tolist() == [[5, 6, 7, 8, 0], [0] * 5, [5, 6, 7, 9, 0]]


def test_a_step_is_accounted_for(states: RequestStates) -> None:
    """Slot 1 decodes, slot 0 computes two tokens of its prompt."""
    running(states, 0, [5, 6, 7], [], [0], 0)
    running(states, 1, [8], [9], [1], 1)
    states.advance(*(np.array(column, np.int32) for column in ([1, 0], [1, 2], [1], [3])))
    assert states.num_computed_tokens.tolist() == [2, 2, 0]
    assert states.num_tokens.tolist() == [3, 3, 0]
    assert states.token_ids[1, :3].tolist() == [8, 9, 3]


def test_the_longest_request_has_room_for_its_last_token(states: RequestStates) -> None:
    running(states, 0, [5] * 7, [6], [0, 1, 2], 7)
    states.advance(*(np.array(column, np.int32) for column in ([0], [1], [0], [7])))
    assert states.token_ids[0].tolist() == [5] * 7 + [6, 7]
