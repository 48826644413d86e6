"""Random lives of many requests over tiny pools: the accounts balance after every step, and no answer changes."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.config import SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.errors import RequestError, RequestTooLargeError
from octavo.kvcache.manager import PagedKVCacheManager
from octavo.kvcache.policies.registry import create_policy
from octavo.namespace import Namespace
from octavo.request import Request, RequestStatus
from octavo.sampling_params import SamplingParams
from octavo.scheduler.scheduler import Scheduler
from support.checking_executor import CheckingExecutor, solo_answer

PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)
"""Three tokens only, so that prefixes meet by chance."""


class EngineMachine(RuleBasedStateMachine):
    """Requests come and go at any moment; the engine steps. Subclasses choose the eviction policy."""

    policy_name = "lru"

    @initialize(
        num_blocks=st.integers(2, 64),
        block_size=st.sampled_from([1, 4, 16]),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(6, 24),
        caching=st.booleans(),
        optimistic=st.booleans(),
    )
    def start(
        self, num_blocks: int, block_size: int, max_num_seqs: int, budget: int, caching: bool, optimistic: bool
    ) -> None:
        self.now = 0.0
        policy = create_policy(self.policy_name, num_blocks, block_size)
        self.manager = PagedKVCacheManager(num_blocks, block_size, enable_prefix_caching=caching, policy=policy)
        config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs)
        self.scheduler = Scheduler(config, self.manager, max_model_len=200, clock=lambda: self.now)
        if optimistic:
            self.scheduler.forecast.fits = lambda *_: True  # preemptions at most steps
        self.core = EngineCore(self.scheduler, CheckingExecutor(num_blocks, block_size))
        self.requests: list[Request] = []

    @rule(
        prompt=PROMPTS,
        max_tokens=st.integers(1, 30),
        priority=st.integers(-1, 1),
        salt=st.sampled_from([None, None, "a"]),
        stop_id=st.integers(0, 200),
        tenant=st.sampled_from(["x", "x", "y", "z"]),
        patience_s=st.one_of(st.just(math.inf), st.floats(0, 20)),
        num_forks=st.sampled_from([0, 0, 0, 1, 3]),
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        priority: int,
        salt: str | None,
        stop_id: int,
        tenant: str,
        patience_s: float,
        num_forks: int,
    ) -> None:
        request, *forks = (
            Request(
                f"r{len(self.requests)}.{number}",
                prompt,
                SamplingParams(temperature=0, max_tokens=max_tokens, stop_token_ids=[stop_id]),
                priority=priority,
                tenant=tenant,
                deadline_s=self.now + patience_s,
                namespace=Namespace(salt=salt),
                seed=stop_id % 3 + number,
            )
            for number in range(1 + num_forks)
        )
        request.forks = forks
        capacity = self.manager.num_blocks * self.manager.block_size
        try:
            self.core.add_request(request)
        except RequestTooLargeError:
            assert len(prompt) + 1 > min(capacity, 200) or self.manager.pins
        else:
            assert len(prompt) + 1 <= min(capacity, 200)
            self.requests += [request, *forks]

    @precondition(lambda self: self.core.has_unfinished_requests)
    @rule()
    def step(self) -> None:
        self.now += 1.0
        scheduled = self.scheduler.schedule()
        assert scheduled.num_tokens <= self.scheduler.config.max_num_batched_tokens
        assert scheduled.num_tokens > 0 or scheduled.expired, "something waits and nothing runs"
        self.scheduler.update(scheduled, self.core.executor.submit(scheduled).result())

    @precondition(lambda self: self.core.has_unfinished_requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        alive = [request for request in self.requests if request.status is not RequestStatus.FINISHED]
        victim = data.draw(st.sampled_from(alive))
        self.core.finish_request(victim.request_id, "abort")
        assert victim.finish_reason == "abort"

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), name=st.sampled_from("pq"), ttl_s=st.sampled_from([math.inf, 3.0]))
    def pin(self, data: st.DataObject, name: str, ttl_s: float) -> None:
        request = data.draw(st.sampled_from(self.requests))
        try:
            self.scheduler.pin_prefix(name, request.token_ids, request.namespace, self.now + ttl_s)
        except RequestError:
            unfinished = (each for each in self.requests if each.status is not RequestStatus.FINISHED)
            most_tokens = max((each.max_tokens for each in unfinished), default=1)
            num_blocks = sum(-(-tokens // self.manager.block_size) for tokens in (request.num_tokens, most_tokens))
            crowded = self.manager.num_pinned_blocks + num_blocks > self.manager.num_blocks
            assert name in self.manager.pins or crowded

    @precondition(lambda self: self.manager.pins)
    @rule(data=st.data(), drop=st.booleans())
    def unpin(self, data: st.DataObject, drop: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.manager.pins)))
        if drop:
            self.manager.evict(name)
        else:
            self.manager.unpin(name)

    @invariant()
    def pinned_blocks_are_never_evicted(self) -> None:
        for pin in self.manager.pins.values() if hasattr(self, "manager") else ():
            assert all(block.ref_count > 0 and block.is_cached for block in pin.blocks)

    @invariant()
    def accounts_balance(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.scheduler.check_integrity()
        pool = self.manager.block_pool
        blank, cached = len(pool.free_queue.blank), pool.get_num_cached_blocks()
        assert blank + cached + pool.num_held == pool.num_blocks
        for request in self.requests:
            if request.status is not RequestStatus.RUNNING:
                assert request.request_id not in self.manager.request_ids()

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        for _ in range(5000):
            if not self.core.has_unfinished_requests:
                break
            self.step()
        assert not self.core.has_unfinished_requests, "a request hangs"
        self.accounts_balance()
        for name in list(self.manager.pins):
            self.manager.unpin(name)
        assert self.manager.block_pool.get_num_free_blocks() == self.manager.num_blocks
        self.manager.block_pool.allocate_blocks(self.manager.num_blocks)  # every cached block can be evicted
        for request in self.requests:
            answer = solo_answer(request)
            if request.finish_reason in ("abort", "timeout"):
                assert request.output_token_ids == answer[: request.num_output_tokens]
            else:
                assert request.output_token_ids == answer, request
