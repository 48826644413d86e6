"""Jumping over equal steps gives the same as taking them."""

from __future__ import annotations

import random

import pytest

from octavo.config import SchedulerConfig
from octavo.kvcache.manager import PagedKVCacheManager
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.output import ExecutorOutput
from octavo.scheduler.scheduler import Scheduler


def make_scheduler(num_blocks: int) -> Scheduler:
    config = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4)
    return Scheduler(config, PagedKVCacheManager(num_blocks, 8), max_model_len=256)


def make_requests(seed: int) -> list[Request]:
    draw = random.Random(seed)
    return [
        Request(
            f"r{number}",
            [draw.randrange(50) for _ in range(draw.randint(1, 40))],
            SamplingParams(max_tokens=draw.randint(1, 60), ignore_eos=True),
            seed=1000 + number,
        )
        for number in range(12)
    ]


def take_step(scheduler: Scheduler) -> tuple[object, ...]:
    scheduled = scheduler.schedule()
    requests = scheduled.sampling_requests
    scheduler.update(scheduled, ExecutorOutput([request.seed for request in requests]))
    scheduler.check_integrity()
    return (
        scheduled.step,
        [request.request_id for request in scheduled.decodes],
        [(chunk.request.request_id, chunk.start, chunk.num_tokens) for chunk in scheduled.chunks],
        [(admission.request.request_id, admission.block_ids) for admission in scheduled.admissions],
        [(update.slot, update.index, update.block_ids) for update in scheduled.table_updates],
        scheduled.block_copies,
        [request.request_id for request in scheduled.preempted],
    )


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("num_blocks", [12, 64])
def test_decisions_are_those_of_single_steps(seed: int, num_blocks: int) -> None:
    single, jumping = make_scheduler(num_blocks), make_scheduler(num_blocks)
    for request, twin in zip(make_requests(seed), make_requests(seed), strict=True):
        single.add_request(request)
        jumping.add_request(twin)
    num_jumped = 0
    while jumping.has_unfinished_requests:
        num_steps = jumping.num_steady_steps()
        for _ in range(num_steps):
            _, decodes, *rest = take_step(single)
            assert decodes
            assert rest == [[], [], [], [], []]
        jumping.advance(num_steps, [request.seed for request in jumping.decodes])
        num_jumped += num_steps
        assert take_step(jumping) == take_step(single)
        assert jumping.stats == single.stats
    assert not single.has_unfinished_requests
    assert num_jumped > 20


def test_more_steps_than_are_steady_are_refused() -> None:
    scheduler = make_scheduler(16)
    scheduler.add_request(Request("a", range(5), SamplingParams(max_tokens=20), seed=7))
    assert scheduler.num_steady_steps() == 0  # it waits
    take_step(scheduler)
    assert scheduler.num_steady_steps() == 2  # six tokens, room for eight: the third step brings the ninth
    with pytest.raises(AssertionError):
        scheduler.advance(3, [7])


def test_nothing_is_steady_while_a_deadline_may_pass() -> None:
    scheduler = make_scheduler(16)
    scheduler.add_request(Request("a", range(5), SamplingParams(max_tokens=20), deadline_s=1e12))
    take_step(scheduler)
    assert scheduler.num_steady_steps() == 0
