"""A replica that leaps over equal steps does what one does that takes them one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from octavo.config import SchedulerConfig
from octavo.scheduler.forecast import MemoryForecast
from octavo.scheduler.output import SchedulerOutput
from octavo.simulator.cost_model import RooflineCostModel
from octavo.simulator.fleet import Fleet
from octavo.simulator.hardware import PROFILES
from octavo.simulator.model_shape import KNOWN_SHAPES
from octavo.simulator.recorder import ServiceLevel
from octavo.simulator.replica import Replica, ReplicaConfig
from octavo.simulator.router import ROUTERS, create_router
from octavo.simulator.simulated_executor import SimulatedStep
from octavo.simulator.workload import WorkloadRequest

COST = RooflineCostModel(KNOWN_SHAPES["llama-3.1-8b"], PROFILES["h100"])
BLOCK_SIZE, NUM_BLOCKS = 16, 40


def make_workload(seed: int, num_requests: int = 120) -> list[WorkloadRequest]:
    """Conversations that share beginnings, in bursts, with a few that can never fit; times on a coarse grid, so that
    several arrive at once."""
    draw = random.Random(seed)
    requests, now_s = [], 0.0
    for number in range(num_requests):
        now_s += draw.choice((0.0, 0.0, 0.01, 0.1, 1.0))
        prompt = [(draw.randrange(3), 50), (10 + draw.randrange(30), 30), (1000 + number, draw.randint(1, 200))]
        if number % 50 == 49:
            prompt.append((5000 + number, 1000))
        requests.append(WorkloadRequest(f"r{number}", now_s, prompt, draw.randint(1, 120), -1 - number))
    return requests


def run(seed: int, router: str, *, leaps: bool) -> tuple[Fleet, list[list[Any]]]:
    config = ReplicaConfig(
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        scheduler=SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=6),
        max_model_len=4096,
    )
    router_of_two = create_router(router, 2, NUM_BLOCKS * BLOCK_SIZE)
    fleet = Fleet(2, config, COST, router_of_two, ServiceLevel(1.0, 0.05), leaps=leaps)
    decisions = [record(replica) for replica in fleet.replicas]
    fleet.run(make_workload(seed))
    return fleet, decisions


def record(replica: Replica) -> list[Any]:
    """What each step of a replica decided, and when."""
    decisions: list[Any] = []
    submit = replica.executor.submit

    def recording(scheduled: SchedulerOutput) -> SimulatedStep:
        decisions.append(decision(scheduled, replica.clock.now_s))
        return submit(scheduled)

    replica.executor.submit = recording  # type: ignore[method-assign]
    return decisions


def decision(scheduled: SchedulerOutput, now_s: float) -> tuple[Any, ...]:
    return (
        scheduled.step,
        now_s,
        [request.request_id for request in scheduled.decodes],
        [(chunk.request.request_id, chunk.start, chunk.num_tokens, chunk.samples) for chunk in scheduled.chunks],
        [
            (each.request.request_id, each.slot, each.block_ids, each.num_computed_tokens)
            for each in scheduled.admissions
        ],
        [(update.slot, update.index, update.block_ids) for update in scheduled.table_updates],
        scheduled.block_copies,
        [request.request_id for request in scheduled.preempted],
    )


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("seed", range(2))
def test_same_decisions_same_times(monkeypatch: pytest.MonkeyPatch, seed: int, router: str) -> None:
    if seed == 1:  # admit whatever fits now, so that requests are preempted later
        monkeypatch.setattr(MemoryForecast, "fits", lambda *_: True)
    leaping, leaping_decisions = run(seed, router, leaps=True)
    single, single_decisions = run(seed, router, leaps=False)
    for some, every in zip(leaping_decisions, single_decisions, strict=True):
        taken = {decision[0] for decision in some}
        assert some == [decision for decision in every if decision[0] in taken]
        leapt = [decision for decision in every if decision[0] not in taken]
        assert all(decision[2] and not any(decision[3:]) for decision in leapt)
        assert len(leapt) > len(every) / 3
    found, expected = leaping.recorder, single.recorder
    for column in ("arrival_s", "ttft_s", "e2e_s", "tpot_s", "num_cached_tokens", "num_preemptions", "replica"):
        by_end = [
            sorted(zip(recorder.arrival_s, recorder.num_prompt_tokens, getattr(recorder, column), strict=True))
            for recorder in (found, expected)
        ]
        assert by_end[0] == by_end[1], column
    assert len(found.ttft_s) == 118
    assert found.refused == expected.refused == ["r49", "r99"]
    assert seed == 0 or sum(found.num_preemptions) > 3
    assert found.itl_s.count == expected.itl_s.count == sum(found.num_output_tokens) - 118
    assert found.itl_s.percentile(50) == pytest.approx(expected.itl_s.percentile(50), rel=0.011)
    for column in range(4):
        ours, theirs = (recorder.timeline.means(column) for recorder in (found, expected))
        assert ours == pytest.approx(theirs)
    for ours, theirs in zip(leaping.replicas, single.replicas, strict=True):
        assert ours.core.scheduler.stats == theirs.core.scheduler.stats
        assert ours.clock.now_s == theirs.clock.now_s
        ours.core.scheduler.check_integrity()
