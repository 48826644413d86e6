"""The engine as a server uses it: many requests at once, computed by a process that may die.

What an answer is made of stays here: of each request the prompt, the parameters with their seed, and the tokens it got
so far. An answer depends on its request alone, so when the engine's process ends, a new one continues every request
from there, and no client sees more than a pause (see :mod:`octavo.engine.blame` for requests that kill it).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace

from octavo import errors
from octavo.config import EngineConfig
from octavo.engine.blame import Blame
from octavo.engine.engine_observer import EngineObserver
from octavo.engine.generation import Generation
from octavo.engine.messages import (
    AddRequest,
    EngineStats,
    FinishRequest,
    FromEngine,
    Ready,
    Refused,
    ReportMemory,
    StepDone,
)
from octavo.engine.messages import Sample as SampleMessage
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.remote_core import ENGINE_COMMAND, RemoteCore
from octavo.engine.text_side import TextSide
from octavo.errors import EngineDownError, EngineError, OctavoError, QueueFullError, RequestError, RequestGivenUpError
from octavo.kvcache.report import MemoryReport
from octavo.outputs import CompletionDelta
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.output import ExecutorOutput, StepOutput, TokenLogprobs
from octavo.weights.sources import resolve_model

MAX_DOWN_S = 60.0
"""Requests wait so long for a new engine process before they fail."""
RETRY_S = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Pauses between attempts to start one; the last repeats."""

_logger = logging.getLogger(__name__)


class AsyncEngine:
    """Requests in, deltas out; one event loop.

    Attributes:
        text: tokenizer and model configuration.
        ready: the engine's limits.
        num_restarts: engine processes that were started to replace another.
        last_progress_s: when a step last finished, or when work last came to an idle engine; on the monotonic clock.
        observer: told of steps, ends and restarts.
    """

    def __init__(self, config: EngineConfig, text: TextSide, command: Sequence[str] = ENGINE_COMMAND) -> None:
        """``config.model`` is a path. :meth:`start` comes next."""
        self.config = config
        self.text = text
        self.ready = Ready(0, 0, 0, 0)
        self.num_restarts = 0
        self.last_progress_s = time.monotonic()
        self.observer: EngineObserver = EngineObserver()
        self._command = command
        self._core: RemoteCore | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._down_since_s: float | None = None
        self._outputs = OutputProcessor(text.tokenizer)
        self._generations: dict[str, Generation] = {}  # by request id
        self._of_sample: dict[int, Generation] = {}
        self._requests: dict[int, Request] = {}  # this side's mirror of each sample
        self._last_token_s: dict[int, float] = {}
        self._unsent: list[Generation] = []
        self._reports: list[asyncio.Future[MemoryReport]] = []  # that somebody waits for, in order
        self._is_searching = False
        self._next_number = 0

    @classmethod
    def create(cls, config: EngineConfig, command: Sequence[str] = ENGINE_COMMAND) -> AsyncEngine:
        """Fetch the model if need be, and read what this side needs of it."""
        path = str(resolve_model(config.model))
        return cls(replace(config, model=path), TextSide.load(path), command)

    async def start(self) -> None:
        """Start the engine's process. Raises :class:`OctavoError` if the engine cannot be built."""
        self._core = await self._start_core()

    async def close(self) -> None:
        """End the process and all requests."""
        if self._recovery is not None:
            self._recovery.cancel()
        self.fail_all("the server is shutting down")
        self._fail_reports()
        core, self._core = self._core, None
        if core is not None:
            await core.close()

    # ---- state -----------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """Of the engine's process; ``None`` while there is none."""
        return None if self._core is None else self._core.pid

    @property
    def num_unfinished(self) -> int:
        """Requests under way."""
        return len(self._generations)

    @property
    def num_waiting(self) -> int:
        """Samples that have not run yet."""
        return sum(request.first_scheduled_s is None for request in self._requests.values())

    @property
    def num_running(self) -> int:
        """Samples that have run, and have not ended."""
        return len(self._requests) - self.num_waiting

    def stalled_s(self) -> float:
        """How long work has waited without a step that finished; 0 if there is none, or if it moves."""
        return time.monotonic() - self.last_progress_s if self._generations else 0.0

    async def memory_report(self) -> MemoryReport:
        """What the KV cache holds. Raises :class:`EngineDownError` if there is no engine to ask, or if it ends."""
        if self._core is None:
            raise EngineDownError("the engine is being replaced; ask again in a second")
        answer: asyncio.Future[MemoryReport] = asyncio.get_running_loop().create_future()
        self._reports.append(answer)
        self._core.send(ReportMemory())
        report = await answer
        names = {str(number): generation.request_id for number, generation in self._of_sample.items()}
        return replace(
            report,
            requests=[replace(each, request_id=names.get(each.request_id, "(ended)")) for each in report.requests],
        )

    # ---- requests --------------------------------------------------------------------------------------------

    def submit(
        self,
        request_id: str,
        token_ids: list[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        arrival_s: float,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
        deadline_s: float = math.inf,
        wants_deltas: bool,
    ) -> Generation:
        """Take in a tokenised prompt; what the engine itself refuses is raised by the generation.

        Args:
            arrival_s: when it came, on the monotonic clock; ``deadline_s`` counts from then.
            wants_deltas: whether the caller will iterate, or only wait for the whole.

        Raises:
            RequestError: something about it is wrong.
            QueueFullError: ``max_waiting_requests`` wait already.
            EngineDownError: nobody is there to compute it.
        """
        if self._down_since_s is not None and time.monotonic() - self._down_since_s > MAX_DOWN_S:
            raise EngineDownError("the engine cannot be started; the server's log says why")
        limit = self.config.scheduler.max_waiting_requests
        if limit is not None and self.num_waiting >= limit:
            raise QueueFullError(f"{limit} requests wait already; try again later")
        requests = self.text.input_processor.requests(
            request_id,
            token_ids,
            params,
            arrival_s=arrival_s,
            priority=priority,
            cache_salt=cache_salt,
            tenant=tenant,
            deadline_s=arrival_s + deadline_s,
        )
        numbers = range(self._next_number, self._next_number + len(requests))
        self._next_number = numbers.stop
        message = AddRequest(
            tuple(SampleMessage(number, request.seed) for number, request in zip(numbers, requests, strict=True)),
            requests[0].token_ids.tobytes(),
            params,
            self.text.input_processor.eos_token_ids,
            priority,
            cache_salt,
            tenant,
            arrival_s,
            arrival_s + deadline_s,
            None,
        )
        self._outputs.add(request_id, prompt, requests)
        group = self._outputs.group(request_id)
        assert group is not None
        generation = Generation(message, group, self.abort, wants_deltas=wants_deltas)
        if not self._generations:
            self.last_progress_s = time.monotonic()
        self._generations[request_id] = generation
        for number, request in zip(numbers, requests, strict=True):
            self._requests[number] = request
            self._of_sample[number] = generation
        self._unsent.append(generation)
        self._send_more()
        return generation

    def abort(self, generation: Generation) -> None:
        """The caller has left: its blocks come free before the next step."""
        self.observer.aborted()
        self._end(generation)

    def fail_all(self, why: str) -> None:
        """Give up every request."""
        for generation in list(self._generations.values()):
            self._fail(generation, RequestGivenUpError(why))

    def _end(self, generation: Generation) -> None:
        for number, request in self._samples(generation):
            request.finish_reason = "abort"
            self._finish_remote(generation, number, "abort")
            self._outputs.end(request.request_id)
        self._forget(generation)

    # ---- the process comes and goes ----------------------------------------------------------------------------

    async def _start_core(self) -> RemoteCore:
        # The queue's length is looked at on this side: what was accepted once must not be refused by the next process.
        scheduler = replace(self.config.scheduler, max_waiting_requests=None)
        config = replace(self.config, scheduler=scheduler)
        core = await RemoteCore.start(config, self._on_message, self._on_end, self._command)
        self.ready = ready = core.ready
        size = f"{ready.num_blocks} KV blocks of {ready.block_size} tokens ({ready.kv_cache_bytes / 2**20:.0f} MiB)"
        _logger.info("engine process %d: %s, requests of up to %d tokens", core.pid, size, ready.max_model_len)
        return core

    def _on_end(self) -> None:
        self._recovery = asyncio.get_running_loop().create_task(self._recover())

    async def _recover(self) -> None:
        """The process has gone: settle who may have done it, start another, and continue every request there."""
        core, self._core = self._core, None
        assert core is not None
        self._down_since_s = time.monotonic()
        self._fail_reports()
        how = await core.wait()
        sent = [generation for generation in self._generations.values() if generation.is_sent]
        _logger.error("the engine process %d ended (%s) under %d requests; replacing it", core.pid, how, len(sent))
        Blame.settle([generation.blame for generation in sent])
        for generation in sent:
            generation.num_replays += 1
            generation.is_sent = False
            if generation.blame.is_proven:
                problem = f"the engine process died {generation.blame.num_alone} times while it computed this request"
                self._fail(generation, RequestGivenUpError(f"{problem} (the last time: {how}); it is given up"))
        self._core = await self._start_again()
        self._down_since_s = None
        self.last_progress_s = time.monotonic()
        self._is_searching = Blame.is_searching(each.blame for each in self._generations.values())
        self._unsent = sorted(self._generations.values(), key=lambda each: each.blame.turn)
        self._send_more()

    async def _start_again(self) -> RemoteCore:
        assert self._down_since_s is not None
        attempt = 0
        while True:
            self.num_restarts += 1
            self.observer.restarted()
            try:
                return await self._start_core()
            except (OctavoError, OSError) as error:
                _logger.error("the engine cannot be started: %s", error)
                if time.monotonic() - self._down_since_s > MAX_DOWN_S:
                    for generation in list(self._generations.values()):
                        self._fail(generation, EngineDownError(f"the engine cannot be started: {error}"))
            attempt += 1
            await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])

    def _fail_reports(self) -> None:
        for answer in self._reports:
            if not answer.done():
                answer.set_exception(EngineDownError("the engine ended; ask again in a second"))
        self._reports.clear()

    def _send_more(self) -> None:
        """Send what waits; one at a time while the guilty one is looked for."""
        while self._unsent and self._core is not None:
            everybody = self._generations.values()
            self._is_searching = self._is_searching and Blame.is_searching(each.blame for each in everybody)
            if self._is_searching and any(each.is_sent and not each.blame.has_progressed for each in everybody):
                return
            generation = self._unsent.pop(0)
            if generation.request_id in self._generations:
                generation.is_sent = True
                generation.blame.has_progressed = False
                self._core.send(self._continuation(generation))

    def _continuation(self, generation: Generation) -> AddRequest:
        """The request from where it stands."""
        if generation.num_replays == 0:
            return generation.message
        samples = []
        for number, request in self._samples(generation):
            output = request.token_ids[request.num_prompt_tokens :].tobytes()
            samples.append(SampleMessage(number, request.seed, output))
        first = generation.group.samples[0].request
        return replace(generation.message, samples=tuple(samples), first_scheduled_s=first.first_scheduled_s)

    # ---- messages ----------------------------------------------------------------------------------------------

    def _on_message(self, message: FromEngine) -> None:
        if isinstance(message, StepDone):
            self._on_step(message)
        elif isinstance(message, EngineStats):
            self.observer.stats(message)
        elif isinstance(message, MemoryReport):
            answer = self._reports.pop(0)
            if not answer.done():  # whoever asked may have left
                answer.set_result(message)
        elif isinstance(message, Refused) and message.number in self._of_sample:
            kind = getattr(errors, message.error, RequestError)
            self._fail(self._of_sample[message.number], kind(message.message))

    def _on_step(self, message: StepDone) -> None:
        self.last_progress_s = time.monotonic()
        for facts in message.facts:
            request = self._requests.get(facts.number)
            if request is None:
                continue
            generation = self._of_sample[facts.number]
            if request.num_cached_tokens < 0:
                request.num_cached_tokens = min(facts.num_cached_tokens, request.num_prompt_tokens)
                request.first_scheduled_s = facts.first_scheduled_s
                generation.waited_for = generation.waited_for or facts.waited_for
            request.num_preemptions = max(request.num_preemptions, facts.num_preemptions)
            request.num_recomputed_tokens = max(request.num_recomputed_tokens, facts.num_recomputed_tokens)
        requests, gaps_s, executor_output = self._take_tokens(message)
        expired = []
        for end in message.ends:
            request = self._requests.get(end.number)
            if request is not None:
                request.finish_reason, request.stop_token_id = end.reason, end.stop_token_id
                request.max_blocks = end.num_blocks
                if end.reason == "timeout":
                    expired.append(request)
                else:
                    self._drop(end.number)
        for delta in self._outputs.process(StepOutput(requests, executor_output.token_ids, expired, executor_output)):
            self._deliver(delta)
        for request in expired:
            delta_of_expired = self._outputs.end(request.request_id)
            if delta_of_expired is not None:
                self._deliver(delta_of_expired)
        self.observer.stats(message.stats)
        self.observer.stepped(message.stats.step_s, gaps_s)
        if self._unsent:
            self._send_more()

    def _take_tokens(self, message: StepDone) -> tuple[list[Request], list[float], ExecutorOutput]:
        """Who got a token after which gap, and the tokens.

        A sample that has ended here gets none: the engine did not know of it yet.
        """
        numbers, tokens = array("q", message.numbers), array("i", message.token_ids)
        requests: list[Request] = []
        token_ids: list[int] = []
        logprobs: dict[int, TokenLogprobs] = {}
        gaps_s: list[float] = []
        now, last_token_s = self.last_progress_s, self._last_token_s
        for row, (number, token_id) in enumerate(zip(numbers, tokens, strict=True)):
            request = self._requests.get(number)
            if request is None:
                continue
            if row in message.logprobs:
                logprobs[len(requests)] = message.logprobs[row]
            request.token_ids.append(token_id)
            self._of_sample[number].blame.progress()
            if number in last_token_s:
                gaps_s.append(now - last_token_s[number])
            last_token_s[number] = now
            requests.append(request)
            token_ids.append(token_id)
        prompt_logprobs = {
            self._requests[number].request_id: found
            for number, found in message.prompt_logprobs.items()
            if number in self._requests
        }
        return requests, gaps_s, ExecutorOutput(token_ids, logprobs, prompt_logprobs)

    def _deliver(self, delta: CompletionDelta) -> None:
        generation = self._generations[delta.request_id]
        generation.put(delta)
        if delta.finish_reason is not None:
            self._end_sample(generation, delta)
        if delta.output is not None:
            self._forget(generation)
            self.observer.finished(delta.output)

    def _end_sample(self, generation: Generation, delta: CompletionDelta) -> None:
        """Text that met a stop string ends here first: the engine has to be told."""
        sample = generation.group.samples[delta.index]
        number = generation.message.samples[delta.index].number
        if number in self._requests:
            if sample.request.finish_reason is None:
                sample.request.max_blocks = -(-(sample.request.num_tokens - 1) // self.ready.block_size)
                self._finish_remote(generation, number, "stop")
            self._drop(number)

    # ---- parts -------------------------------------------------------------------------------------------------

    def _samples(self, generation: Generation) -> list[tuple[int, Request]]:
        """Those that have not ended."""
        numbers = [sample.number for sample in generation.message.samples]
        return [(number, self._requests[number]) for number in numbers if number in self._requests]

    def _finish_remote(self, generation: Generation, number: int, reason: str) -> None:
        if generation.is_sent and self._core is not None:
            self._core.send(FinishRequest(number, reason))

    def _fail(self, generation: Generation, error: OctavoError) -> None:
        self._end(generation)
        generation.fail(error)
        if isinstance(error, EngineError):
            self.observer.failed()

    def _drop(self, number: int) -> None:
        del self._requests[number], self._of_sample[number]
        self._last_token_s.pop(number, None)

    def _forget(self, generation: Generation) -> None:
        self._generations.pop(generation.request_id, None)
        for number, _ in self._samples(generation):
            self._drop(number)
        if self._unsent:
            self._send_more()
