"""The seam between scheduling and arithmetic.

``submit`` starts a step and ``result`` waits for it: synchronous today, overlapped later, without a new seam.
The simulator implements the same with a cost model and a virtual clock.
"""

from __future__ import annotations

from typing import Protocol

from octavo.scheduler.output import ExecutorOutput, SchedulerOutput


class StepHandle(Protocol):
    """A step under way."""

    def result(self) -> ExecutorOutput:
        """Wait for the step."""


class Executor(Protocol):
    """Runs steps."""

    def submit(self, scheduled: SchedulerOutput) -> StepHandle:
        """Start a step."""
