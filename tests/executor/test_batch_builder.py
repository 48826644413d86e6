"""From steps to arrays, as in the picture of ``octavo.executor.batch_builder``, by literal numbers (block size 4)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.running_requests import running

from octavo.backends.base import Batch
from octavo.backends.reference import ReferenceBackend
from octavo.executor.batch_builder import BatchBuilder
from octavo.executor.request_states import RequestStates
from octavo.request import Request
from octavo.scheduler.output import Chunk, SchedulerOutput


@pytest.fixture
def states() -> RequestStates:
    return RequestStates(max_num_seqs=5, max_model_len=20, max_blocks=5)


def build(builder: BatchBuilder, scheduled: SchedulerOutput) -> tuple[Batch, list[int], list[int]]:
    """The batch, the tokens to sample from, and the slots that get what is drawn."""
    rows = builder.rows(scheduled)
    batch, sampling_tokens = builder.build(rows, ReferenceBackend()), rows.sampling_tokens.tolist()
    assert rows.samples_all == (sampling_tokens == list(range(batch.num_tokens)))
    return batch, sampling_tokens, rows.sampling_slots.tolist()


def arrays(batch: Batch) -> dict[str, object]:
    found = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    for name, value in found.items():
        if isinstance(value, np.ndarray):
            assert value.dtype == np.int32, name
            found[name] = value.tolist()
    return found


def picture(states: RequestStates) -> list[Request]:
    """A has 10 tokens, 9 of them computed; B 5 and 4; of C's prompt of 6 tokens nothing is computed."""
    return [
        running(states, 2, [11, 12, 13, 14, 15, 16, 17], [18, 19, 110], [7, 3, 5], 9),
        running(states, 0, [21, 22, 23, 24], [25], [1, 8], 4),
        running(states, 3, [31, 32, 33, 34, 35, 36], [], [6, 2], 0),
    ]


def test_two_decodes_and_a_chunk(states: RequestStates) -> None:
    a, b, c = picture(states)
    scheduled = SchedulerOutput(1, [a, b], [Chunk(c, 0, 3, samples=False)])
    batch, sampling_tokens, sampling_slots = build(BatchBuilder(states, 4), scheduled)
    assert arrays(batch) == {
        "input_ids": [110, 25, 31, 32, 33],
        "positions": [9, 4, 0, 1, 2],
        "slot_mapping": [5 * 4 + 1, 8 * 4, 6 * 4, 6 * 4 + 1, 6 * 4 + 2],
        "block_tables": [[7, 3, 5], [1, 8, 0], [6, 2, 0]],
        "seq_lens": [10, 5, 3],
        "query_start_loc": [0, 1, 2, 5],
        "num_tokens": 5,
        "num_requests": 3,
        "max_query_len": 3,
        "max_seq_len": 10,
    }
    assert (sampling_tokens, sampling_slots) == ([0, 1], [2, 0])


def test_the_chunk_that_ends_a_prompt_samples_from_its_last_token(states: RequestStates) -> None:
    _, b, c = picture(states)
    states.num_computed_tokens[3] = c.num_computed_tokens = 2
    scheduled = SchedulerOutput(1, [b], [Chunk(c, 2, 4, samples=True)])
    batch, sampling_tokens, sampling_slots = build(BatchBuilder(states, 4), scheduled)
    assert batch.input_ids.tolist() == [25, 33, 34, 35, 36]
    assert batch.positions.tolist() == [4, 2, 3, 4, 5]
    assert batch.slot_mapping.tolist() == [32, 26, 27, 8, 9]
    assert batch.seq_lens.tolist() == [5, 6]
    assert batch.block_tables.tolist() == [[1, 8], [6, 2]]
    assert (sampling_tokens, sampling_slots) == ([0, 4], [0, 3])


def test_forks_sample_from_their_parents_row(states: RequestStates) -> None:
    a, b, c = picture(states)
    forks = [Request("f0", c.token_ids, c.params), Request("f1", c.token_ids, c.params)]
    forks[0].slot, forks[1].slot = 4, 1
    scheduled = SchedulerOutput(1, [a], [Chunk(b, 4, 1, samples=True), Chunk(c, 0, 6, samples=True, forks=forks)])
    batch, sampling_tokens, sampling_slots = build(BatchBuilder(states, 4), scheduled)
    assert batch.query_start_loc.tolist() == [0, 1, 2, 8]
    assert sampling_tokens == [0, 1, 7, 7, 7]
    assert sampling_slots == [2, 0, 3, 4, 1]


def test_only_decodes(states: RequestStates) -> None:
    a, b, _ = picture(states)
    batch, sampling_tokens, sampling_slots = build(BatchBuilder(states, 4), SchedulerOutput(1, [b, a]))
    assert batch.input_ids.tolist() == [25, 110]
    assert batch.positions.tolist() == [4, 9]
    assert batch.query_start_loc.tolist() == [0, 1, 2]
    assert batch.max_query_len == 1
    assert (sampling_tokens, sampling_slots) == ([0, 1], [0, 2])


def test_only_chunks_that_do_not_sample(states: RequestStates) -> None:
    _, _, c = picture(states)
    batch, sampling_tokens, sampling_slots = build(
        BatchBuilder(states, 4), SchedulerOutput(1, [], [Chunk(c, 0, 5, samples=False)])
    )
    assert batch.slot_mapping.tolist() == [24, 25, 26, 27, 8]
    assert (sampling_tokens, sampling_slots) == ([], [])


def test_the_decodes_are_looked_at_again_when_they_change(states: RequestStates) -> None:
    """The scheduler hands over the same list as long as the same requests decode."""
    a, b, _ = picture(states)
    builder, both = BatchBuilder(states, 4), [a, b]
    assert builder.rows(SchedulerOutput(1, both)).slots.tolist() == [2, 0]
    assert builder.rows(SchedulerOutput(2, both)).slots.tolist() == [2, 0]
    assert builder.rows(SchedulerOutput(3, [b])).slots.tolist() == [0]
    assert builder.rows(SchedulerOutput(4, [])).slots.tolist() == []
