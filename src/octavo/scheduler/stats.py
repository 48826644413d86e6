"""Running totals of what the scheduler did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SchedulerStats:
    """Counters since the start.

    Attributes:
        num_prompt_tokens: of admitted requests; ``num_cached_tokens`` of them came from the prefix cache.
        num_computed_tokens: tokens that went through the model; ``num_recomputed_tokens`` of them a second time,
            because of preemption.
    """

    num_steps: int = 0
    num_finished: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_recomputed_tokens: int = 0
