"""An executor that says what a test wants to hear, and fails when a test wants it to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.executor.interface import Executor, StepHandle
from octavo.scheduler.output import ExecutorOutput, SchedulerOutput


class ScriptedExecutor:
    """Gives every request the same output, token by token, and then token 2 for ever."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = list(script)

    def submit(self, scheduled: SchedulerOutput) -> ScriptedExecutor:
        places = [request.num_output_tokens for request in scheduled.sampling_requests]
        self._output = ExecutorOutput([self.script[at] if at < len(self.script) else 2 for at in places])
        return self

    def result(self) -> ExecutorOutput:
        return self._output


class SaboteurExecutor:
    """Passes steps on to a real executor, and calls ``sabotage`` before or after it."""

    def __init__(
        self,
        executor: Executor,
        *,
        before: Callable[[SchedulerOutput], None] = lambda scheduled: None,
        after: Callable[[SchedulerOutput], None] = lambda scheduled: None,
    ) -> None:
        self._executor = executor
        self._before = before
        self._after = after

    def submit(self, scheduled: SchedulerOutput) -> StepHandle:
        self._before(scheduled)
        handle = self._executor.submit(scheduled)
        self._after(scheduled)
        return handle
