"""An executor that computes nothing: it looks up how long the step would take and lets that time pass."""

from __future__ import annotations

from octavo.request import Request
from octavo.scheduler.output import ExecutorOutput, SchedulerOutput
from octavo.simulator.clock import VirtualClock
from octavo.simulator.cost_model import CostModel, step_s


class SimulatedStep:
    """A step that took its time on the virtual clock."""

    def __init__(self, output: ExecutorOutput) -> None:
        self._output = output

    def result(self) -> ExecutorOutput:
        """One token for each request that samples."""
        return self._output


class SimulatedExecutor:
    """The same seam as the executor that runs a model.

    A request's "answer" is one token, its seed, again and again: so no answer equals another by chance, and a workload
    can make a later prompt repeat it.

    Attributes:
        scheduled: the latest step.
    """

    def __init__(self, cost: CostModel, clock: VirtualClock) -> None:
        self.cost = cost
        self.clock = clock
        self.scheduled = SchedulerOutput(0, [])

    def submit(self, scheduled: SchedulerOutput) -> SimulatedStep:
        """Let the step's time pass."""
        self.scheduled = scheduled
        self.clock.advance(step_s(self.cost, scheduled))
        requests = scheduled.sampling_requests if scheduled.chunks else scheduled.decodes
        return SimulatedStep(ExecutorOutput(next_tokens(requests)))


def next_tokens(requests: list[Request]) -> list[int]:
    """What the pretend model says to each."""
    return [request.seed for request in requests]
