"""The engine's loop: schedule, execute, update."""

from __future__ import annotations

from octavo.executor.interface import Executor
from octavo.kvcache.report import MemoryReport, memory_report
from octavo.request import Request
from octavo.scheduler.output import ExecutorOutput, StepOutput
from octavo.scheduler.scheduler import Scheduler

NOTHING = ExecutorOutput([])
"""Of a step in which the last requests expired."""


class EngineCore:
    """Requests in, tokens out; knows neither text nor arrays."""

    def __init__(self, scheduler: Scheduler, executor: Executor) -> None:
        self.scheduler = scheduler
        self.executor = executor

    def add_request(self, request: Request) -> None:
        """Take in a request. Raises :class:`~octavo.errors.RequestError` if it can never run."""
        self.scheduler.add_request(request)

    def finish_request(self, request_id: str, reason: str) -> Request | None:
        """End a request from outside (its text met a stop string, its caller left). Between steps only."""
        return self.scheduler.finish_request(request_id, reason)

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether another step has something to do."""
        return self.scheduler.has_unfinished_requests

    def memory_report(self) -> MemoryReport:
        """What the KV cache holds now."""
        running = self.scheduler.running.items()
        num_tokens = {request_id: request.num_computed_tokens for request_id, request in running}
        return memory_report(self.scheduler.manager, num_tokens)

    def idle(self) -> None:
        """Call when there is nothing to do for now: a full audit of the memory, unless the last was just before."""
        self.scheduler.health.check_idle()

    def abandon_step(self) -> None:
        """:meth:`step` has raised: end the requests that run, with ``finish_reason="error"``."""
        self.scheduler.abandon_step()

    def step(self) -> StepOutput:
        """Compute one step. If it raises, :meth:`abandon_step` comes next."""
        scheduled = self.scheduler.schedule()
        result = self.executor.submit(scheduled).result() if scheduled.num_tokens else NOTHING
        return self.scheduler.update(scheduled, result)
