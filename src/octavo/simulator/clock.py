"""Time that passes only when a step is simulated."""

from __future__ import annotations


class VirtualClock:
    """Calling it gives the time, so the scheduler takes it in place of ``time.monotonic``.

    Attributes:
        now_s: seconds since the start of the simulation.
    """

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """The time, seconds."""
        return self.now_s

    def advance(self, duration_s: float) -> None:
        """Let time pass."""
        self.now_s += duration_s

    def skip_to(self, time_s: float) -> None:
        """Nothing happens until ``time_s``; the past stays."""
        self.now_s = max(self.now_s, time_s)
