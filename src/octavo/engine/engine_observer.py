"""Who wants to know what an engine does."""

from __future__ import annotations

from octavo.engine.messages import EngineStats
from octavo.outputs import RequestOutput


class EngineObserver:
    """Told what happens, for metrics; this one does not care."""

    def stats(self, stats: EngineStats) -> None:
        """Gauges and counters of the engine's process, after a step or when it has become idle."""

    def stepped(self, step_s: float, gaps_s: list[float]) -> None:
        """A step took so long; those that got a token had waited so long since their last one."""

    def finished(self, output: RequestOutput) -> None:
        """A request has ended by itself."""

    def aborted(self) -> None:
        """A caller has left."""

    def failed(self) -> None:
        """A request was given up."""

    def restarted(self) -> None:
        """An engine process is started to replace one that has died."""
