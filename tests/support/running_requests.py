"""Requests in slots, without a scheduler."""

from __future__ import annotations

from octavo.executor.request_states import RequestStates
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.output import Admission


def running(
    states: RequestStates,
    slot: int,
    prompt: list[int],
    output: list[int],
    block_ids: list[int],
    num_computed_tokens: int,
    params: SamplingParams | None = None,
    **keywords: object,
) -> Request:
    """A request that takes a slot, with what it has generated already."""
    request = Request(f"r{slot}", prompt, params or SamplingParams(temperature=0), **keywords)  # type: ignore[arg-type]
    request.token_ids.extend(output)
    request.num_computed_tokens = num_computed_tokens
    request.slot = slot
    states.admit(Admission(request, slot, block_ids, num_computed_tokens))
    return request
