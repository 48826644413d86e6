"""From a scheduled step to the arrays of one forward pass.

::

    requests          A (decode)   B (decode)   C (chunk of 3)
    input_ids         a9           b4           c0 c1 c2
    positions         9            4            0  1  2
    query_start_loc   0            1            2           5
    seq_lens          10           5            3
    slot_mapping      block_tables[request][position // block_size] * block_size + position % block_size
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.backends.base import Backend, Batch
from octavo.executor.request_states import Int32, RequestStates
from octavo.request import Request
from octavo.scheduler.output import Chunk, SchedulerOutput


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """Which slots a step computes, and for which slots it samples.

    Attributes:
        slots: int32 [R]: decodes first, then chunks.
        num_scheduled: int32 [R]: tokens of each.
        query_start_loc: int32 [R + 1]: where each begins among the step's tokens.
        sampling_slots: int32 [S]: who gets a token.
        sampling_tokens: int32 [S], ascending: which of the step's tokens each samples from; a fork's is its parent's.
        samples_all: each of the step's tokens is sampled from, once.
    """

    slots: Int32
    num_scheduled: Int32
    query_start_loc: Int32
    sampling_slots: Int32
    sampling_tokens: Int32
    samples_all: bool


class BatchBuilder:
    """Builds batches from the states of the requests."""

    def __init__(self, states: RequestStates, block_size: int) -> None:
        self._states = states
        self._block_size = block_size
        self._decodes: list[Request] | None = None
        self._decode_rows = _decode_rows([])

    def rows(self, scheduled: SchedulerOutput) -> StepRows:
        """The step's requests as arrays; the same object as long as the same decodes run and nobody else."""
        if scheduled.decodes is not self._decodes:
            self._decodes = scheduled.decodes
            self._decode_rows = _decode_rows([request.slot for request in scheduled.decodes])
        return _with_chunks(self._decode_rows, scheduled.chunks) if scheduled.chunks else self._decode_rows

    def build(self, rows: StepRows, backend: Backend) -> Batch:
        """The batch of one forward pass."""
        states, slots, counts, starts = self._states, rows.slots, rows.num_scheduled, rows.query_start_loc
        num_tokens = int(starts[-1])
        num_computed = states.num_computed_tokens[slots]
        if num_tokens == len(slots):
            token_slots, positions = slots, num_computed
        else:
            token_slots = np.repeat(slots, counts)
            positions = np.arange(num_tokens, dtype=np.int32) + np.repeat(num_computed - starts[:-1], counts)
        seq_lens = num_computed + counts
        max_seq_len = int(seq_lens.max())
        max_blocks = -(-max_seq_len // self._block_size)
        from_host = backend.from_host
        return Batch(
            input_ids=from_host(states.token_ids[token_slots, positions]),
            positions=from_host(positions),
            slot_mapping=from_host(self._slot_mapping(token_slots, positions)),
            block_tables=from_host(states.block_tables[slots, :max_blocks]),
            seq_lens=from_host(seq_lens),
            query_start_loc=from_host(starts),
            num_tokens=num_tokens,
            num_requests=len(slots),
            max_query_len=1 if num_tokens == len(slots) else int(counts.max()),
            max_seq_len=max_seq_len,
        )

    def _slot_mapping(self, token_slots: Int32, positions: Int32) -> npt.NDArray[np.int32]:
        block_index, offset = np.divmod(positions, self._block_size)
        block_ids = self._states.block_tables[token_slots, block_index]
        return (block_ids * self._block_size + offset).astype(np.int32)


def _decode_rows(slots: list[int]) -> StepRows:
    """One token each, and each is sampled from."""
    count = len(slots)
    starts, rows = np.arange(count + 1, dtype=np.int32), np.array(slots, np.int32)
    return StepRows(rows, np.ones(count, np.int32), starts, rows, starts[:-1], samples_all=True)


def _with_chunks(decodes: StepRows, chunks: list[Chunk]) -> StepRows:
    """Chunks after the decodes."""
    slots = np.concatenate([decodes.slots, np.array([chunk.request.slot for chunk in chunks], np.int32)])
    counts = np.concatenate([decodes.num_scheduled, np.array([chunk.num_tokens for chunk in chunks], np.int32)])
    starts = np.zeros(len(slots) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    ends = starts[len(decodes.slots) + 1 :] - 1
    sampling = [
        (end, request.slot)
        for end, chunk in zip(ends.tolist(), chunks, strict=True)
        if chunk.samples
        for request in (chunk.request, *chunk.forks)
    ]
    chunk_tokens, chunk_slots = np.array(sampling, np.int32).reshape(-1, 2).T
    sampling_tokens = np.concatenate([decodes.sampling_tokens, chunk_tokens])
    samples_all = len(sampling_tokens) == starts[-1] and bool((sampling_tokens == np.arange(starts[-1])).all())
    sampling_slots = np.concatenate([decodes.sampling_slots, chunk_slots])
    return StepRows(slots, counts, starts, sampling_slots, sampling_tokens, samples_all)
