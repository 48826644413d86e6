"""An executor that computes nothing: tokens out of a hat, and each output as long as it was told to be."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from octavo.request import Request
from octavo.scheduler.output import ExecutorOutput, SchedulerOutput

VOCAB_SIZE = 49_152
STOP_TOKEN = VOCAB_SIZE
"""Not among the random tokens; a request whose ``stop_token_ids`` hold it ends when its output is long enough."""


def random_tokens(generator: random.Random, num_tokens: int) -> list[int]:
    """Tokens that no other request has in this order."""
    return generator.choices(range(VOCAB_SIZE), k=num_tokens)


@dataclass
class NullExecutor:
    """Stands where a model would.

    Attributes:
        output_lengths: request id → tokens that its output shall have; others end by their own ``max_tokens``.
    """

    generator: random.Random
    output_lengths: dict[str, int] = field(default_factory=dict)

    def compute(self, scheduled: SchedulerOutput) -> ExecutorOutput:
        """A token for everybody who samples."""
        return ExecutorOutput([self._next_token(request) for request in scheduled.sampling_requests])

    def _next_token(self, request: Request) -> int:
        wanted = self.output_lengths.get(request.request_id)
        if wanted is not None and request.num_output_tokens + 1 >= wanted:
            return STOP_TOKEN
        return self.generator.randrange(VOCAB_SIZE)
