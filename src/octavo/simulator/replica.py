"""One engine of a fleet: the core that serves, on a clock of its own.

Decisions are made step by step, by the scheduler. Between two decisions often lie many steps that only give each
decode one more token; such a run of steps is taken as one leap, with the same times and the same accounts. A leap is
planned first and taken later, for a request that arrives meanwhile cuts it short::

    now_s         step  step  step  step  step   next_event_s
      ├─────┼─────┼─────┼─────┼─────┤  the next decision
                        ▲ a request arrives: it joins at the next boundary, the leap ends there

This file uses numpy, for the times of the steps of a leap: in pure Python they were a tenth of a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.config import CacheConfig, SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.kvcache.manager import PagedKVCacheManager
from octavo.kvcache.policies.registry import create_policy
from octavo.request import Request
from octavo.scheduler.scheduler import Scheduler
from octavo.simulator.clock import VirtualClock
from octavo.simulator.cost_model import CostModel
from octavo.simulator.recorder import Recorder
from octavo.simulator.simulated_executor import SimulatedExecutor, next_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """One engine.

    Attributes:
        num_blocks: blocks in the KV pool; ``block_size`` tokens each.
        eviction_policy: who is evicted from the prefix cache, one of ``POLICY_NAMES``.
    """

    num_blocks: int
    block_size: int
    scheduler: SchedulerConfig
    max_model_len: int
    enable_prefix_caching: bool = True
    eviction_policy: str = CacheConfig().eviction_policy


class Replica:
    """Serves what it is given, in virtual time.

    Attributes:
        index: its number in the fleet; ``on_news`` hears when, with this index, whether it is the end, and whose:
            of each first and each last token.
        next_event_s: nothing is decided and nobody finishes before then; infinite while nothing is to do.
    """

    def __init__(
        self,
        index: int,
        config: ReplicaConfig,
        cost: CostModel,
        recorder: Recorder,
        on_news: Callable[[float, int, bool, str], None],
        *,
        leaps: bool = True,
    ) -> None:
        self.index = index
        self.clock = VirtualClock()
        manager = PagedKVCacheManager(
            config.num_blocks,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            policy=create_policy(config.eviction_policy, config.num_blocks, config.block_size),
        )
        self.executor = SimulatedExecutor(cost, self.clock)
        self.core = EngineCore(Scheduler(config.scheduler, manager, config.max_model_len, self.clock), self.executor)
        self.next_event_s = math.inf
        self._recorder = recorder
        self._on_news = on_news
        self._leaps = leaps
        self._plan_ends_s: NDArray[np.float64] | None = None  # of the coming steady steps
        self._first_token_s: dict[str, float] = {}
        self._last_token_s: dict[str, float] = {}  # of requests that were preempted after their first token

    def add(self, request: Request) -> None:
        """A request arrives: it joins at the first boundary between steps from ``arrival_s`` on.

        Raises:
            RequestTooLargeError: it could never fit.
        """
        self.run_until(request.arrival_s)
        self._leap(request.arrival_s)
        if not self.core.has_unfinished_requests:
            self.clock.skip_to(request.arrival_s)
        try:
            self.core.add_request(request)
        finally:
            self._plan()

    def run_until(self, time_s: float) -> None:
        """Take every step that starts before ``time_s``; steady steps may be left for later."""
        while self.next_event_s < time_s:
            self._leap(math.inf)
            self._step()
            self._plan()

    def _step(self) -> None:
        """One step of the engine, with all its decisions."""
        start_s = self.clock.now_s
        step = self.core.step()
        now_s, scheduled = self.clock.now_s, self.executor.scheduled
        for request in scheduled.preempted:
            if request.num_output_tokens > 0:
                self._last_token_s.setdefault(request.request_id, start_s)
        if scheduled.decodes:
            self._recorder.itl_s.add(now_s - start_s, len(scheduled.decodes))
        for chunk in scheduled.chunks:
            if chunk.samples:
                self._note_sample_after_prefill(chunk.request.request_id, now_s)
        self._note_state(start_s)
        for request in step.finished:
            self._recorder.finish(request, self.index, self._first_token_s.pop(request.request_id), now_s)
            self._on_news(now_s, self.index, True, request.request_id)

    def _note_sample_after_prefill(self, request_id: str, now_s: float) -> None:
        """The request's first token, or the first one after a preemption."""
        last_token_s = self._last_token_s.pop(request_id, None)
        if last_token_s is None:
            self._first_token_s[request_id] = now_s
            self._on_news(now_s, self.index, False, request_id)
        else:
            self._recorder.itl_s.add(now_s - last_token_s, 1)

    def _note_state(self, start_s: float) -> None:
        scheduler, end_s = self.core.scheduler, self.clock.now_s
        num_held = scheduler.manager.block_pool.num_held
        self._recorder.timeline.add(start_s, end_s, num_held, len(scheduler.running), len(scheduler.waiting), 1)

    # ---- leaps -----------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """See how far the next decision is."""
        num_steps = self.core.scheduler.num_steady_steps() if self._leaps else 0
        self._plan_ends_s = None
        if num_steps:
            self._plan_ends_s = self._steady_ends_s(num_steps)
            self.next_event_s = float(self._plan_ends_s[-1])
        else:
            self.next_event_s = self.clock.now_s if self.core.has_unfinished_requests else math.inf

    def _steady_ends_s(self, num_steps: int) -> NDArray[np.float64]:
        """When each of the coming steps ends, if all are steady.

        The times are added up one by one, so that they are those of single steps to the last bit.
        """
        decodes, cost = self.core.scheduler.decodes, self.executor.cost
        num_decodes, context_token_s = len(decodes), cost.context_token_s
        dense_s = cost.dense_s(num_decodes, num_decodes)
        num_context = sum([len(request.token_ids) for request in decodes])
        contexts = np.arange(num_context, num_context + num_steps * num_decodes, num_decodes)
        durations_s = dense_s + context_token_s * contexts
        durations_s[0] += self.clock.now_s
        return np.add.accumulate(durations_s)

    def _leap(self, until_s: float) -> None:
        """Take the planned steps that start before ``until_s``; drop the rest of the plan."""
        ends_s = self._plan_ends_s
        if ends_s is not None and self.clock.now_s < until_s:
            last = min(int(ends_s.searchsorted(until_s)), len(ends_s) - 1)  # the first that ends then or later
            self._take(last + 1, float(ends_s[last]))
        self._plan_ends_s = None

    def _take(self, num_steps: int, end_s: float) -> None:
        scheduler, cost, start_s = self.core.scheduler, self.executor.cost, self.clock.now_s
        decodes = scheduler.decodes
        num_decodes, num_context = len(decodes), sum([len(request.token_ids) for request in decodes])
        first_s = cost.dense_s(num_decodes, num_decodes) + cost.context_token_s * num_context
        self._recorder.itl_s.add_rising(first_s, cost.context_token_s * num_decodes, num_steps, num_decodes)
        scheduler.advance(num_steps, next_tokens(decodes))
        self.clock.skip_to(end_s)
        self._note_state(start_s)
