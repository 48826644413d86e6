"""A request as the scheduler sees it: tokens in, tokens out, and how far its KV has come."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from enum import Enum

from octavo.namespace import DEFAULT_NAMESPACE, Namespace
from octavo.sampling_params import SamplingParams


class RequestStatus(Enum):
    """Where a request stands. A preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """One sequence to complete.

    The one rule: ``num_computed_tokens`` (whose KV is in the cache) chases ``num_tokens`` (prompt and output so far).
    Prefill, decode, a prefix hit and recomputation after preemption are the same: a step computes some of the
    difference, and when nothing is left, the next token is sampled.

    Attributes:
        token_ids: prompt and output, 32-bit.
        seed: of the draws; never ``None`` here.
        stop_ids: tokens that end the output.
        priority: smaller runs sooner.
        tenant: who asks; tenants share fairly.
        deadline_s: when to give up, seconds on the engine's clock; infinite for never.
        num_missing_tokens: tokens whose KV is not in the cache; 1 while decoding, 0 once a chunk has computed the last.
        charged: weighted tokens that the tenant has been charged for this request.
        arrival: position in the order of arrival.
        max_tokens: of prompt and output together; set when the scheduler accepts the request.
        slot: row of the executor's state; -1 unless running.
        attention_at: number of tokens at which the scheduler next has to do more than append one.
        finish_reason: ``stop``, ``length``, ``abort``, ``timeout`` or ``error``.
        stop_token_id: the token among ``stop_ids`` that ended the output.
        num_cached_tokens: prompt tokens that came from the prefix cache when it was first admitted; -1 before that.
        num_preemptions, num_recomputed_tokens, max_blocks: see :class:`octavo.outputs.RequestMetrics`.
        forks: requests that share the prompt and part from it at the first generated token.
        first_scheduled_s: when it first ran, seconds on the engine's clock.
    """

    __slots__ = (
        "arrival",
        "arrival_s",
        "attention_at",
        "charged",
        "deadline_s",
        "finish_reason",
        "first_scheduled_s",
        "forks",
        "max_blocks",
        "max_tokens",
        "namespace",
        "num_cached_tokens",
        "num_missing_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_recomputed_tokens",
        "params",
        "priority",
        "request_id",
        "seed",
        "slot",
        "status",
        "stop_ids",
        "stop_token_id",
        "tenant",
        "token_ids",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Iterable[int],
        params: SamplingParams,
        *,
        eos_token_ids: Iterable[int] = (),
        seed: int = 0,
        namespace: Namespace = DEFAULT_NAMESPACE,
        priority: int = 0,
        tenant: str = "",
        arrival_s: float = 0.0,
        deadline_s: float = math.inf,
    ) -> None:
        self.request_id = request_id
        self.token_ids = array("i", prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.params = params
        self.seed = seed
        self.stop_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            self.stop_ids |= frozenset(eos_token_ids)
        self.namespace = namespace
        self.priority = priority
        self.tenant = tenant
        self.deadline_s = deadline_s
        self.charged = 0
        self.arrival = 0
        self.arrival_s = arrival_s
        self.status = RequestStatus.WAITING
        self.num_missing_tokens = self.num_prompt_tokens
        self.max_tokens = 0
        self.slot = -1
        self.attention_at = 0
        self.finish_reason: str | None = None
        self.stop_token_id: int | None = None
        self.num_cached_tokens = -1
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.max_blocks = 0
        self.first_scheduled_s: float | None = None
        self.forks: list[Request] = []

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV is in the cache."""
        return len(self.token_ids) - self.num_missing_tokens

    @num_computed_tokens.setter
    def num_computed_tokens(self, num_tokens: int) -> None:
        self.num_missing_tokens = len(self.token_ids) - num_tokens

    @property
    def num_output_tokens(self) -> int:
        """Generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """The generated tokens."""
        return self.token_ids[self.num_prompt_tokens :].tolist()

    @property
    def reuses_prefix(self) -> bool:
        """Log probabilities of the prompt need every prompt token computed, until the first output token is there."""
        return self.params.prompt_logprobs is None or self.num_output_tokens > 0

    def __repr__(self) -> str:
        return f"Request({self.request_id}, {self.num_computed_tokens}/{self.num_tokens}, {self.status.value})"
