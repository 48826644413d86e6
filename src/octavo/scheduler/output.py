"""What one step computes, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.request import Request


@dataclass(slots=True)
class Chunk:
    """Some of the tokens that a request still has to compute, from ``start`` on.

    Attributes:
        samples: the chunk reaches the last token, so the next one is sampled.
        forks: requests that part from this one now: each takes a slot, shares all blocks, and draws its own next token.
    """

    request: Request
    start: int
    num_tokens: int
    samples: bool
    forks: list[Request] = field(default_factory=list)


@dataclass(slots=True)
class TableUpdate:
    """Entries ``index …`` of the block table in row ``slot`` change to ``block_ids``."""

    slot: int
    index: int
    block_ids: list[int]


@dataclass(slots=True)
class Admission:
    """A request takes row ``slot``: new, or back after preemption.

    Attributes:
        block_ids: its whole block table.
        num_computed_tokens: tokens whose KV is in those blocks already.
    """

    request: Request
    slot: int
    block_ids: list[int]
    num_computed_tokens: int


@dataclass(slots=True)
class SchedulerOutput:
    """One step.

    Attributes:
        decodes: requests whose one missing token is computed; each samples its next. The same list object stands in
            one step after another until a request joins or leaves, so that a step touches only what changed.
        chunks: requests with more to compute.
        admissions, table_updates, block_copies: what the executor has to do first, in this order; a copy is
            ``(source block, target block)``.
        preempted: requests that gave their blocks back.
        expired: requests whose deadline has passed; they have ended.
    """

    step: int
    decodes: list[Request]
    chunks: list[Chunk] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    table_updates: list[TableUpdate] = field(default_factory=list)
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    expired: list[Request] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens that go through the model."""
        return len(self.decodes) + sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def sampling_requests(self) -> list[Request]:
        """Requests that get a token, in the order of ``ExecutorOutput.token_ids``."""
        return self.decodes + [
            request for chunk in self.chunks if chunk.samples for request in (chunk.request, *chunk.forks)
        ]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Candidates at one position: the chosen (or given) token first, then the most likely ones in order.

    Attributes:
        rank: of the first.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


@dataclass(frozen=True, slots=True)
class ExecutorOutput:
    """What a step computed.

    Attributes:
        token_ids: one per request of ``SchedulerOutput.sampling_requests``.
        logprobs: by index into ``token_ids``, for the requests that asked.
        prompt_logprobs: by request id: those of consecutive prompt tokens, and the position of the first.
    """

    token_ids: Sequence[int]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[str, tuple[int, list[TokenLogprobs]]] = field(default_factory=dict)


@dataclass(slots=True)
class StepOutput:
    """What a step means for the callers.

    Attributes:
        requests: those that got a token; ``token_ids`` beside them.
        finished: requests that ended in this step, by ``request.finish_reason``.
    """

    requests: list[Request]
    token_ids: Sequence[int]
    finished: list[Request]
    executor_output: ExecutorOutput
