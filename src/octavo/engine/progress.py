"""The progress bar of many prompts."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class PromptProgress:
    """A bar on standard error; ``advance`` when a prompt is done."""

    def __init__(self, num_prompts: int) -> None:
        self._progress = Progress(
            TextColumn("prompts"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("prompts", total=num_prompts)

    def __enter__(self) -> PromptProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self) -> None:
        """One more prompt is done."""
        self._progress.advance(self._task)
