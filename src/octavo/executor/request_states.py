"""What the executor remembers of the running requests: arrays with one row per slot.

A step reads and writes whole columns of these; nothing is touched per request and step.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.output import Admission, TableUpdate

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


class RequestStates:
    """Rows belong to the slots that the scheduler gives out; a row's contents are stale once its request has left.

    Attributes:
        token_ids: int32 [slots, max_model_len + 1]: prompt and output.
        num_tokens: int32 [slots].
        num_computed_tokens: int32 [slots].
        block_tables: int32 [slots, max blocks].
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty: [slots]; temperature
            is 0 for a greedy request.
        seeds: uint64 [slots].
        num_logprobs: int32 [slots]; -1 for none.
        special: bool [slots]: penalties, a bias or a minimum length: the row needs its request's parameters.
        requests: by slot.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, max_blocks: int) -> None:
        self.token_ids = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        self.num_tokens = np.zeros(max_num_seqs, np.int32)
        self.num_computed_tokens = np.zeros(max_num_seqs, np.int32)
        self.block_tables = np.zeros((max_num_seqs, max_blocks), np.int32)
        self.temperature = np.zeros(max_num_seqs, np.float32)
        self.top_k = np.zeros(max_num_seqs, np.int32)
        self.top_p = np.ones(max_num_seqs, np.float32)
        self.min_p = np.zeros(max_num_seqs, np.float32)
        self.repetition_penalty = np.ones(max_num_seqs, np.float32)
        self.presence_penalty = np.zeros(max_num_seqs, np.float32)
        self.frequency_penalty = np.zeros(max_num_seqs, np.float32)
        self.seeds = np.zeros(max_num_seqs, np.uint64)
        self.num_logprobs = np.full(max_num_seqs, -1, np.int32)
        self.special = np.zeros(max_num_seqs, np.bool_)
        self.requests: list[Request | None] = [None] * max_num_seqs

    def admit(self, admission: Admission) -> None:
        """A request takes a row."""
        slot, request = admission.slot, admission.request
        num_tokens = request.num_tokens
        self.token_ids[slot, :num_tokens] = np.frombuffer(request.token_ids, np.int32)
        self.num_tokens[slot] = num_tokens
        self.num_computed_tokens[slot] = admission.num_computed_tokens
        self.block_tables[slot, : len(admission.block_ids)] = admission.block_ids
        self._set_sampling(slot, request)

    def fork(self, parent_slot: int, request: Request) -> None:
        """A request parts from the one in ``parent_slot``, all of whose tokens are computed in this step."""
        slot = request.slot
        num_tokens = self.num_tokens[parent_slot]
        self.token_ids[slot, :num_tokens] = self.token_ids[parent_slot, :num_tokens]
        self.num_tokens[slot] = self.num_computed_tokens[slot] = num_tokens
        self.block_tables[slot] = self.block_tables[parent_slot]
        self._set_sampling(slot, request)

    def update_table(self, update: TableUpdate) -> None:
        """Some entries of a row's block table change."""
        self.block_tables[update.slot, update.index : update.index + len(update.block_ids)] = update.block_ids

    def advance(self, slots: Int32, num_scheduled: Int32, sampled_slots: Int32, sampled: Int32) -> None:
        """Account for a step: what was computed, and the tokens it sampled."""
        self.num_computed_tokens[slots] += num_scheduled
        self.token_ids[sampled_slots, self.num_tokens[sampled_slots]] = sampled
        self.num_tokens[sampled_slots] += 1

    def _set_sampling(self, slot: int, request: Request) -> None:
        self.requests[slot] = request
        params = request.params
        self.temperature[slot] = 0.0 if params.is_greedy else params.temperature
        self.top_k[slot] = max(params.top_k, 0)
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.repetition_penalty[slot] = params.repetition_penalty
        self.presence_penalty[slot] = params.presence_penalty
        self.frequency_penalty[slot] = params.frequency_penalty
        self.seeds[slot] = request.seed % 2**64
        self.num_logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        self.special[slot] = _is_special(params)


def _is_special(params: SamplingParams) -> bool:
    return params.needs_history or bool(params.logit_bias) or params.min_tokens > 0
