"""Kinds of faults that users of other engines reported in public, tried on this one. Each test is named after its kind.

Kinds that have a test of their own elsewhere: unsatisfiable admission, no-progress state, oversubscribed streams,
prefill starves decode (test_scheduler); accounting drift (test_health); double free, hash collision, incomplete key,
timing side channel (test_manager).
"""

from __future__ import annotations

import random

import pytest
from support.checking_executor import CheckingExecutor, solo_answer

from octavo.config import SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.kvcache.manager import PagedKVCacheManager
from octavo.request import Request, RequestStatus
from octavo.sampling_params import SamplingParams
from octavo.scheduler.output import SchedulerOutput
from octavo.scheduler.scheduler import Scheduler


def make_core(num_blocks: int, max_num_seqs: int = 16, budget: int = 128) -> EngineCore:
    config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs)
    manager = PagedKVCacheManager(num_blocks, 16)
    return EngineCore(Scheduler(config, manager, 4096), CheckingExecutor(num_blocks, 16))


def make_request(name: str, prompt: list[int], max_tokens: int) -> Request:
    return Request(name, prompt, SamplingParams(temperature=0, max_tokens=max_tokens))


def random_prompt(rng: random.Random, num_tokens: int) -> list[int]:
    return [rng.randrange(50) for _ in range(num_tokens)]


def step(core: EngineCore) -> SchedulerOutput:
    scheduled = core.scheduler.schedule()
    core.scheduler.update(scheduled, core.executor.submit(scheduled).result())
    core.scheduler.check_integrity()
    return scheduled


def run(core: EngineCore, max_steps: int = 20_000) -> list[SchedulerOutput]:
    steps: list[SchedulerOutput] = []
    while core.has_unfinished_requests:
        steps.append(step(core))
        assert len(steps) < max_steps, "the engine does not come to an end"
    return steps


def test_hold_and_wait() -> None:
    """Two requests that fit one at a time, both with a cached prefix: nobody holds blocks while it cannot run."""
    rng = random.Random(0)
    core = make_core(num_blocks=8)
    prefixes = [random_prompt(rng, 64) for _ in range(2)]
    for number, prefix in enumerate(prefixes):
        core.add_request(make_request(f"warm{number}", prefix, 1))
        run(core)
    requests = [
        make_request(f"r{number}", prefix + random_prompt(rng, 30), 30) for number, prefix in enumerate(prefixes)
    ]
    for request in requests:
        core.add_request(request)
    while core.has_unfinished_requests:
        step(core)
        waiting = [request.request_id for request in requests if request.status is RequestStatus.WAITING]
        assert not set(waiting) & set(core.scheduler.manager.request_ids())
    assert [request.output_token_ids for request in requests] == [solo_answer(request) for request in requests]


def test_preemption_storm_when_frees_come_late() -> None:
    """Deferred frees under pressure: no step preempts more than the blocks it lacks, and every step makes progress."""
    rng = random.Random(1)
    core = make_core(num_blocks=24, max_num_seqs=16)
    core.scheduler.forecast.fits = lambda *_: True  # type: ignore[method-assign]
    requests = [make_request(f"r{number}", random_prompt(rng, 20), 60) for number in range(16)]
    for request in requests:
        core.add_request(request)
    for scheduled in run(core):
        num_lacking = sum(update.index > 0 for update in scheduled.table_updates) + len(scheduled.preempted)
        assert len(scheduled.preempted) <= num_lacking
        assert scheduled.num_tokens > 0
    assert core.scheduler.stats.num_preemptions > 0
    assert [request.output_token_ids for request in requests] == [solo_answer(request) for request in requests]


@pytest.mark.parametrize("seed", range(3))
def test_wasteful_victims(seed: int) -> None:
    """With demand at one and a half times the pool, less than a tenth of the computed tokens are computed again."""
    rng = random.Random(seed)
    core = make_core(num_blocks=160, max_num_seqs=32, budget=256)
    lengths = [(rng.randint(20, 200), min(int(rng.expovariate(1 / 80)) + 1, 400)) for _ in range(200)]
    mean_tokens = sum(map(sum, lengths)) / len(lengths)
    num_streams = round(1.5 * 160 * 16 / mean_tokens)  # as many at once as would fill the pool one and a half times
    pending = [
        make_request(f"r{number}", random_prompt(rng, prompt), output)
        for number, (prompt, output) in enumerate(lengths)
    ]
    open_requests: list[Request] = []
    while pending or core.has_unfinished_requests:
        open_requests = [request for request in open_requests if request.status is not RequestStatus.FINISHED]
        while pending and len(open_requests) < num_streams:
            open_requests.append(pending.pop())
            core.add_request(open_requests[-1])
        step(core)
    stats = core.scheduler.stats
    assert stats.num_recomputed_tokens < 0.1 * stats.num_computed_tokens, stats


def test_sliding_window_reuse_collapses() -> None:
    """Eight sessions round robin, at a quarter of the pool: from the second turn on, nearly all is found again."""
    rng = random.Random(2)
    core = make_core(num_blocks=8 * 4 * 8, budget=256)
    sessions = [random_prompt(rng, 40) for _ in range(8)]
    for turn in range(4):
        num_prompt = num_cached = 0
        for number, tokens in enumerate(sessions):
            tokens += random_prompt(rng, 3)
            request = make_request(f"s{number}.{turn}", tokens, 8)
            core.add_request(request)
            run(core)
            tokens[:] = request.token_ids.tolist()
            num_prompt += request.num_prompt_tokens
            num_cached += request.num_cached_tokens
        assert turn == 0 or num_cached / num_prompt > 0.9
