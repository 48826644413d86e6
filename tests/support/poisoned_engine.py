"""The engine's process with a fault in it: a request that contains POISON kills it when its prompt is computed."""

from __future__ import annotations

import os
import signal
import sys

from octavo.engine import engine_process
from octavo.executor.model_executor import CompletedStep, ModelExecutor
from octavo.scheduler.output import SchedulerOutput

POISON = 120
"""A token id of the tiny models."""

_submit = ModelExecutor.submit


def _submit_or_die(self: ModelExecutor, scheduled: SchedulerOutput) -> CompletedStep:
    if any(POISON in chunk.request.token_ids for chunk in scheduled.chunks):
        os.kill(os.getpid(), signal.SIGSEGV)
    return _submit(self, scheduled)


if __name__ == "__main__":
    ModelExecutor.submit = _submit_or_die  # type: ignore[method-assign]
    engine_process.main(int(sys.argv[1]))
