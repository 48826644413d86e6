"""The executor that runs a model: the only place where scheduling meets arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.backends.base import Array, Backend, KVCache, SampleOutput
from octavo.executor.batch_builder import BatchBuilder, StepRows
from octavo.executor.request_states import Int32, RequestStates
from octavo.executor.sampling_builder import SamplingBuilder
from octavo.models.registry import Model
from octavo.scheduler.output import Chunk, ExecutorOutput, SchedulerOutput, TokenLogprobs

LOGITS_ROWS = 64
"""Rows of logits held at once while log probabilities of a prompt are computed."""


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step that was computed at once."""

    output: ExecutorOutput

    def result(self) -> ExecutorOutput:
        """What the step computed."""
        return self.output


class ModelExecutor:
    """Runs mixed prefill and decode in one forward pass."""

    def __init__(
        self,
        model: Model,
        backend: Backend,
        kv_cache: KVCache,
        *,
        block_size: int,
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        self.model = model
        self.backend = backend
        self._kv_cache = kv_cache
        self._states = RequestStates(max_num_seqs, max_model_len, -(-max_model_len // block_size))
        self._builder = BatchBuilder(self._states, block_size)
        self._sampling = SamplingBuilder(self._states)

    def submit(self, scheduled: SchedulerOutput) -> CompletedStep:
        """Run a step: admit, copy, forward, sample."""
        self._apply(scheduled)
        rows = self._builder.rows(scheduled)
        batch = self._builder.build(rows, self.backend)
        hidden = self.model.forward(batch, self._kv_cache)
        prompt_logprobs = self._prompt_logprobs(scheduled, hidden)
        sampled = self._sample(hidden, rows)
        self._states.advance(rows.slots, rows.num_scheduled, rows.sampling_slots, sampled.token_ids)
        return CompletedStep(
            ExecutorOutput(
                token_ids=sampled.token_ids.tolist(),
                logprobs=_requested_logprobs(sampled, self._states.num_logprobs[rows.sampling_slots]),
                prompt_logprobs=prompt_logprobs,
            )
        )

    def _apply(self, scheduled: SchedulerOutput) -> None:
        for admission in scheduled.admissions:
            self._states.admit(admission)
        for update in scheduled.table_updates:
            self._states.update_table(update)
        for chunk in scheduled.chunks:
            for fork in chunk.forks:
                self._states.fork(chunk.request.slot, fork)
        if scheduled.block_copies:
            copies = np.array(scheduled.block_copies, np.int32)
            self.backend.copy_blocks(self._kv_cache, copies[:, 0].copy(), copies[:, 1].copy())

    def _sample(self, hidden: Array, rows: StepRows) -> SampleOutput:
        if len(rows.sampling_slots) == 0:
            return SampleOutput(np.zeros(0, np.int32))
        if not rows.samples_all:
            hidden = self.backend.take_rows(hidden, self.backend.from_host(rows.sampling_tokens))
        logits = self.model.compute_logits(hidden)
        return self.backend.sample(logits, self._sampling.build(rows))

    def _prompt_logprobs(self, scheduled: SchedulerOutput, hidden: Array) -> dict[str, tuple[int, list[TokenLogprobs]]]:
        """Log probabilities of the prompt tokens that follow the ones computed now, for the requests that asked."""
        results: dict[str, tuple[int, list[TokenLogprobs]]] = {}
        first_row = len(scheduled.decodes)
        for chunk in scheduled.chunks:
            if chunk.request.params.prompt_logprobs is not None:
                found = self._chunk_logprobs(chunk, hidden, first_row)
                if found:
                    results[chunk.request.request_id] = (chunk.start + 1, found)
            first_row += chunk.num_tokens
        return results

    def _chunk_logprobs(self, chunk: Chunk, hidden: Array, first_row: int) -> list[TokenLogprobs]:
        request, backend = chunk.request, self.backend
        assert request.params.prompt_logprobs is not None
        last = min(chunk.start + chunk.num_tokens, request.num_prompt_tokens - 1)
        targets = np.frombuffer(request.token_ids[chunk.start + 1 : last + 1], np.int32)
        found: list[TokenLogprobs] = []
        for at in range(0, len(targets), LOGITS_ROWS):
            piece = targets[at : at + LOGITS_ROWS]
            row_ids = np.arange(first_row + at, first_row + at + len(piece), dtype=np.int32)
            logits = self.model.compute_logits(backend.take_rows(hidden, backend.from_host(row_ids)))
            output = backend.logprobs(logits, piece, request.params.prompt_logprobs)
            found.extend(_row_logprobs(output, row, request.params.prompt_logprobs) for row in range(len(piece)))
        return found


def _requested_logprobs(output: SampleOutput, num_logprobs: Int32) -> dict[int, TokenLogprobs]:
    if output.logprobs is None:
        return {}
    return {row: _row_logprobs(output, row, count) for row, count in enumerate(num_logprobs.tolist()) if count >= 0}


def _row_logprobs(output: SampleOutput, row: int, num_logprobs: int) -> TokenLogprobs:
    assert output.logprobs is not None
    assert output.logprob_token_ids is not None
    assert output.ranks is not None
    return TokenLogprobs(
        token_ids=output.logprob_token_ids[row, : num_logprobs + 1].tolist(),
        logprobs=output.logprobs[row, : num_logprobs + 1].tolist(),
        rank=int(output.ranks[row]),
    )
