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
from octavo.scheduler.output import SchedulerOutput


@dataclass(frozen=True, slots=True)
class StepRows:
    """Which slots a step computes, and for which slots it samples.

    Attributes:
        slots: int32 [R]: decodes first, then chunks.
        num_scheduled: int32 [R]: tokens of each.
        sampling_rows: int32 [S]: indices into ``slots``, ascending; the row of a fork is that of its parent.
        sampling_slots: int32 [S]: who gets the token.
    """

    slots: Int32
    num_scheduled: Int32
    sampling_rows: Int32
    sampling_slots: Int32


class BatchBuilder:
    """Builds batches from the states of the requests; keeps the decodes' slots as long as the same decodes run."""

    def __init__(self, states: RequestStates, block_size: int) -> None:
        self._states = states
        self._block_size = block_size
        self._decodes: list[Request] | None = None
        self._decode_slots = np.zeros(0, np.int32)

    def rows(self, scheduled: SchedulerOutput) -> StepRows:
        """The step's requests as arrays."""
        if scheduled.decodes is not self._decodes:
            self._decodes = scheduled.decodes
            self._decode_slots = np.array([request.slot for request in scheduled.decodes], np.int32)
        num_decodes, chunks = len(self._decode_slots), scheduled.chunks
        slots = np.concatenate([self._decode_slots, np.array([chunk.request.slot for chunk in chunks], np.int32)])
        num_scheduled = np.ones(len(slots), np.int32)
        num_scheduled[num_decodes:] = [chunk.num_tokens for chunk in chunks]
        if not chunks:
            return StepRows(slots, num_scheduled, np.arange(num_decodes, dtype=np.int32), slots)
        sampling = [
            (row, request.slot)
            for row, chunk in enumerate(chunks, start=num_decodes)
            if chunk.samples
            for request in (chunk.request, *chunk.forks)
        ]
        chunk_rows, chunk_slots = np.array(sampling, np.int32).reshape(-1, 2).T
        sampling_rows = np.concatenate([np.arange(num_decodes, dtype=np.int32), chunk_rows])
        return StepRows(slots, num_scheduled, sampling_rows, np.concatenate([self._decode_slots, chunk_slots]))

    def build(self, rows: StepRows, backend: Backend) -> tuple[Batch, Int32]:
        """The batch, and int32 [S]: the row of hidden states from which each sampling request samples."""
        states, slots, counts = self._states, rows.slots, rows.num_scheduled
        starts = np.zeros(len(slots) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
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
        batch = Batch(
            input_ids=from_host(states.token_ids[token_slots, positions]),
            positions=from_host(positions),
            slot_mapping=from_host(self._slot_mapping(token_slots, positions)),
            block_tables=from_host(states.block_tables[slots, :max_blocks]),
            seq_lens=from_host(seq_lens),
            query_start_loc=from_host(starts),
            num_tokens=num_tokens,
            num_requests=len(slots),
            max_query_len=int(counts.max()),
            max_seq_len=max_seq_len,
        )
        return batch, starts[1:][rows.sampling_rows] - 1

    def _slot_mapping(self, token_slots: Int32, positions: Int32) -> npt.NDArray[np.int32]:
        block_index, offset = np.divmod(positions, self._block_size)
        block_ids = self._states.block_tables[token_slots, block_index]
        return (block_ids * self._block_size + offset).astype(np.int32)
