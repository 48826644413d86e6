"""The engine with text on both ends: prompts in, deltas out, one step at a time."""

from __future__ import annotations

import math
import time
from typing import TypedDict

from octavo.engine.core import EngineCore
from octavo.engine.input_processor import InputProcessor, Prompt
from octavo.engine.output_processor import OutputProcessor
from octavo.errors import RequestError
from octavo.outputs import CompletionDelta
from octavo.sampling_params import SamplingParams
from octavo.tokenization.tokenizer import Tokenizer


class RequestTerms(TypedDict, total=False):
    """How a request is served; none of it changes the answer, but for a deadline that cuts it short.

    Attributes:
        priority: smaller runs sooner; 0 by default.
        cache_salt: only requests with the same salt share cached prefixes.
        tenant: tenants share fairly.
        deadline_s: seconds from now after which the request ends, with ``finish_reason="timeout"`` and what it has.
    """

    priority: int
    cache_salt: str | None
    tenant: str
    deadline_s: float


class LLMEngine:
    """Not thread-safe: one caller adds, steps and aborts."""

    def __init__(self, core: EngineCore, tokenizer: Tokenizer, input_processor: InputProcessor) -> None:
        self.core = core
        self.tokenizer = tokenizer
        self.input_processor = input_processor
        self._outputs = OutputProcessor(tokenizer)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
        deadline_s: float = math.inf,
    ) -> None:
        """Take in a prompt. The keywords are :class:`RequestTerms`.

        Raises:
            RequestError: something about it is wrong, or it could never fit; nothing of it is kept.
        """
        if self._outputs.group(request_id) is not None:
            raise RequestError(f"request id {request_id!r} is in use; choose another")
        arrival_s = time.monotonic()
        token_ids = self.input_processor.token_ids(prompt)
        requests = self.input_processor.requests(
            request_id,
            token_ids,
            params,
            arrival_s=arrival_s,
            priority=priority,
            cache_salt=cache_salt,
            tenant=tenant,
            deadline_s=arrival_s + deadline_s,
        )
        requests[0].forks = requests[1:]
        self.core.add_request(requests[0])
        self._outputs.add(request_id, prompt if isinstance(prompt, str) else None, requests)

    def abort_request(self, request_id: str) -> list[CompletionDelta]:
        """End a request; its last deltas. Unknown and ended ids are ignored."""
        group = self._outputs.group(request_id)
        deltas = []
        for sample in group.samples if group is not None else ():
            self.core.finish_request(sample.request.request_id, "abort")
            delta = self._outputs.end(sample.request.request_id)
            if delta is not None:
                deltas.append(delta)
        return deltas

    def is_unfinished(self, request_id: str) -> bool:
        """Whether more deltas of a request will come."""
        return self._outputs.group(request_id) is not None

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether another step has something to do."""
        return self.core.has_unfinished_requests

    def step(self) -> list[CompletionDelta]:
        """Compute one step; what each sample gained.

        If it raises, the requests that ran have ended and give no more deltas; those that waited go on.
        """
        try:
            return self._step()
        except BaseException:
            self.core.abandon_step()
            for request_id in self._outputs.ended_groups():
                self.abort_request(request_id)
            raise

    def _step(self) -> list[CompletionDelta]:
        step = self.core.step()
        deltas = list(self._outputs.process(step))
        for delta, request in zip(deltas, step.requests, strict=True):
            if delta.finish_reason is not None and request.finish_reason is None:
                self.core.finish_request(request.request_id, delta.finish_reason)
        last_of_expired = [self._outputs.end(request.request_id) for request in step.finished]
        return deltas + [delta for delta in last_of_expired if delta is not None]
