"""The engine's own process: ``python -m octavo.engine.engine_process FD``, started by :mod:`octavo.engine.remote_core`.

It computes and nothing else: tokens in, tokens out, over the socket with descriptor FD. Text stays with the server, so
that this loop is never slowed by a client, and a client's stream survives the end of this process.

It ends when the server's end of the socket closes. Signals that a terminal or a service manager sends to the whole
group are the server's business: it drains, and needs the engine to do so.
"""

from __future__ import annotations

import gc
import signal
import socket
import sys
import time
from array import array

from octavo.engine.build import build_engine
from octavo.engine.core import EngineCore
from octavo.engine.messages import (
    AddRequest,
    EngineChannel,
    EngineStats,
    FinishRequest,
    Ready,
    Refused,
    ReportMemory,
    SampleEnd,
    SampleFacts,
    StartEngine,
    StartFailed,
    StepDone,
)
from octavo.errors import RequestError
from octavo.namespace import DEFAULT_NAMESPACE, Namespace
from octavo.request import Request
from octavo.scheduler.output import StepOutput, TokenLogprobs


def main(descriptor: int) -> None:
    """Build the engine that the first message describes, and run it until the server is gone."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as connection:
        channel = EngineChannel(connection)
        messages: list[object] | None = []
        while messages == []:
            messages = channel.receive(None)
        if messages is None:
            return
        (start,) = messages
        assert isinstance(start, StartEngine)
        try:
            built = build_engine(start.config)
        except Exception as error:  # whatever it is, the server says it to a person
            channel.send(StartFailed(type(error).__name__, str(error)))
            return
        gc.collect()
        gc.freeze()  # or the collector would walk over every block of the pool again and again, in the middle of a step
        spec = built.kv_cache_spec
        channel.send(Ready(built.max_model_len, spec.num_blocks, spec.block_size, spec.num_bytes))
        EngineLoop(built.engine.core, channel).run()


REST_S = 5.0
"""After so long without work, the memory is audited in full: late enough not to delay the next of a row of requests."""


class EngineLoop:
    """Takes in messages between steps, and tells after each step what came of it."""

    def __init__(self, core: EngineCore, channel: EngineChannel) -> None:
        self._core = core
        self._channel = channel
        self._requests: dict[int, Request] = {}
        self._not_started: dict[int, Request] = {}
        self._waited_for: dict[int, str] = {}
        self._num_preemptions_told = 0
        self._num_recomputed_told = 0

    def run(self) -> None:
        """Until the server is gone."""
        has_rested = False
        while True:
            works = self._core.has_unfinished_requests
            messages = self._channel.receive(0.0 if works else None if has_rested else REST_S)
            if messages is None:
                return
            if has_rested := not works and not messages:
                self._core.idle()
            for message in messages:
                self._take(message)
            if self._core.has_unfinished_requests:
                self._channel.send(self._step())
            elif messages:
                self._channel.send(self._stats(0.0))

    def _take(self, message: object) -> None:
        if isinstance(message, FinishRequest):
            if message.number in self._requests:
                self._core.finish_request(str(message.number), message.reason)
                self._forget(message.number)
            return
        if isinstance(message, ReportMemory):
            self._channel.send(self._core.memory_report())
            return
        assert isinstance(message, AddRequest), message
        requests = [_request(message, index) for index in range(len(message.samples))]
        apart = any(sample.output_token_ids for sample in message.samples)
        if not apart:
            requests[0].forks = requests[1:]
        try:
            for request in requests if apart else requests[:1]:
                self._core.add_request(request)
        except RequestError as error:
            for request in requests:
                self._core.finish_request(request.request_id, "abort")
            self._channel.send(Refused(message.samples[0].number, type(error).__name__, str(error)))
            return
        for request in requests:
            number = int(request.request_id)
            self._requests[number] = self._not_started[number] = request

    def _step(self) -> StepDone:
        scheduler = self._core.scheduler
        num_computed = scheduler.stats.num_computed_tokens
        started_s = time.perf_counter()
        step = self._core.step()
        step_s = time.perf_counter() - started_s
        facts = self._facts(scheduler.stats.num_computed_tokens - num_computed)
        ends = tuple(self._end(request) for request in step.finished)
        return StepDone(
            array("q", [int(request.request_id) for request in step.requests]).tobytes(),
            array("i", step.token_ids).tobytes(),
            step.executor_output.logprobs,
            _by_number(step),
            facts,
            ends,
            self._stats(step_s),
        )

    def _facts(self, num_tokens: int) -> tuple[SampleFacts, ...]:
        """What the step of ``num_tokens`` changed: who started, who was preempted, who computes again."""
        stats, changed = self._core.scheduler.stats, []
        for number, request in list(self._not_started.items()):
            if request.first_scheduled_s is not None and request.num_cached_tokens >= 0:
                del self._not_started[number]
                changed.append(request)
            elif number not in self._waited_for:
                self._waited_for[number] = self._reason_to_wait(num_tokens)
        if (stats.num_preemptions, stats.num_recomputed_tokens) != (
            self._num_preemptions_told,
            self._num_recomputed_told,
        ):
            self._num_preemptions_told, self._num_recomputed_told = stats.num_preemptions, stats.num_recomputed_tokens
            changed += [request for request in self._requests.values() if request.num_preemptions]
        return tuple(
            SampleFacts(
                int(request.request_id),
                request.first_scheduled_s,
                request.num_cached_tokens,
                request.num_preemptions,
                request.num_recomputed_tokens,
                self._waited_for.get(int(request.request_id)),
            )
            for request in changed
        )

    def _reason_to_wait(self, num_tokens: int) -> str:
        scheduler = self._core.scheduler
        if num_tokens >= scheduler.config.max_num_batched_tokens:
            return "token_budget"
        return "slots" if len(scheduler.running) >= scheduler.config.max_num_seqs else "blocks"

    def _end(self, request: Request) -> SampleEnd:
        number = int(request.request_id)
        self._forget(number)
        assert request.finish_reason is not None, request
        return SampleEnd(number, request.finish_reason, request.stop_token_id, request.max_blocks)

    def _forget(self, number: int) -> None:
        del self._requests[number]
        self._not_started.pop(number, None)
        self._waited_for.pop(number, None)

    def _stats(self, step_s: float) -> EngineStats:
        scheduler, pool = self._core.scheduler, self._core.scheduler.manager.block_pool
        stats = scheduler.stats
        return EngineStats(
            step_s=step_s,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_blocks_cached=pool.get_num_cached_blocks(),
            num_blocks_held=pool.num_held,
            num_steps=stats.num_steps,
            num_preemptions=stats.num_preemptions,
            num_prompt_tokens=stats.num_prompt_tokens,
            num_cached_tokens=stats.num_cached_tokens,
            num_computed_tokens=stats.num_computed_tokens,
            num_recomputed_tokens=stats.num_recomputed_tokens,
            num_evictions=pool.num_evictions,
            num_breaches=scheduler.health.num_breaches,
        )


def _request(message: AddRequest, index: int) -> Request:
    """The core's view of a sample; what it has generated already follows its prompt, as if it had been preempted."""
    sample = message.samples[index]
    request = Request(
        str(sample.number),
        (),
        message.params,
        eos_token_ids=message.eos_token_ids,
        seed=sample.seed,
        namespace=DEFAULT_NAMESPACE if message.cache_salt is None else Namespace(salt=message.cache_salt),
        priority=message.priority,
        tenant=message.tenant,
        arrival_s=message.arrival_s,
        deadline_s=message.deadline_s,
    )
    request.token_ids.frombytes(message.prompt_token_ids)
    request.num_prompt_tokens = len(request.token_ids)
    request.token_ids.frombytes(sample.output_token_ids)
    request.first_scheduled_s = message.first_scheduled_s
    return request


def _by_number(step: StepOutput) -> dict[int, tuple[int, list[TokenLogprobs]]]:
    return {int(request_id): found for request_id, found in step.executor_output.prompt_logprobs.items()}


if __name__ == "__main__":
    main(int(sys.argv[1]))
