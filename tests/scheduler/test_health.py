"""The memory heals itself, and says so."""

from __future__ import annotations

import logging

import pytest
from support.checking_executor import CheckingExecutor, solo_answer

from octavo.config import SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.kvcache.manager import PagedKVCacheManager
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.health import MemoryHealth
from octavo.scheduler.scheduler import Scheduler


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make_core(clock: Clock) -> EngineCore:
    config = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4)
    return EngineCore(Scheduler(config, PagedKVCacheManager(16, 4), 64, clock), CheckingExecutor(16, 4))


def test_accounting_drift_is_logged_counted_and_healed_and_serving_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(MemoryHealth, "raise_on_breach", False)
    core = make_core(Clock())
    requests = [Request(f"r{i}", range(9), SamplingParams(temperature=0, max_tokens=9), seed=i) for i in range(3)]
    for request in requests:
        core.add_request(request)
    core.step()
    core.scheduler.manager.block_pool.num_held -= 1
    with caplog.at_level(logging.ERROR):
        while core.has_unfinished_requests:
            core.step()
    assert core.scheduler.health.num_breaches == 1
    assert "are not 16" in caplog.text
    core.scheduler.check_integrity()
    assert [request.output_token_ids for request in requests] == [solo_answer(request) for request in requests]


def test_a_breach_raises_in_tests() -> None:
    core = make_core(Clock())
    core.add_request(Request("a", range(9), SamplingParams(temperature=0, max_tokens=9)))
    core.step()
    core.scheduler.manager.block_pool.num_held -= 1
    with pytest.raises(AssertionError, match="are not 16"):
        core.step()


def test_the_full_audit_runs_when_idle_and_takes_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryHealth, "raise_on_breach", False)
    clock = Clock()
    core = make_core(clock)
    health, manager = core.scheduler.health, core.scheduler.manager
    audits: list[float] = []

    def slow_audit() -> None:
        audits.append(clock.now)
        clock.now += 0.5
        assert len(audits) < 3, "broken"

    monkeypatch.setattr(manager, "check_integrity", slow_audit)
    for _ in range(200):
        core.idle()
        clock.now += 1.0
    assert audits == [0.0, 50.5, 101.0, 151.5]
    assert health.num_breaches == 2
