"""What is scheduled when; small cases with literal numbers, and the liveness promises."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.checking_executor import CheckingExecutor, solo_answer

from octavo.config import SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.errors import QueueFullError, RequestError, RequestTooLargeError
from octavo.kvcache.manager import PagedKVCacheManager
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.output import SchedulerOutput
from octavo.scheduler.scheduler import Scheduler


def make_core(
    num_blocks: int = 16, block_size: int = 4, budget: int = 64, max_num_seqs: int = 8, max_model_len: int = 256
) -> EngineCore:
    manager = PagedKVCacheManager(num_blocks, block_size)
    config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs)
    return EngineCore(Scheduler(config, manager, max_model_len), CheckingExecutor(num_blocks, block_size))


def expect_short_outputs(core: EngineCore) -> EngineCore:
    """Make the forecast so optimistic that requests are admitted which later do not fit together."""
    core.scheduler.forecast.fits = lambda *_: True  # type: ignore[method-assign]
    return core


def make_request(name: str, num_prompt: int, max_tokens: int = 4, first: int = 0, **keywords: Any) -> Request:
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    return Request(name, range(first, first + num_prompt), params, **keywords)


def step(core: EngineCore) -> SchedulerOutput:
    """One step of the engine; returns what was scheduled, and checks the accounts."""
    scheduled = core.scheduler.schedule()
    core.scheduler.update(scheduled, core.executor.submit(scheduled).result())
    core.scheduler.check_integrity()
    return scheduled


def run(core: EngineCore, max_steps: int = 2000) -> int:
    for number in range(max_steps):
        if not core.has_unfinished_requests:
            return number
        step(core)
    raise AssertionError("the engine does not come to an end")


def chunks(scheduled: SchedulerOutput) -> list[tuple[str, int, int]]:
    return [(chunk.request.request_id, chunk.start, chunk.num_tokens) for chunk in scheduled.chunks]


def names(requests: list[Request]) -> list[str]:
    return [request.request_id for request in requests]


def test_a_prompt_is_prefilled_then_decoded() -> None:
    core = make_core()
    request = make_request("a", 6, max_tokens=3)
    core.add_request(request)
    first = step(core)
    assert (chunks(first), names(first.decodes)) == ([("a", 0, 6)], [])
    second = step(core)
    assert (chunks(second), names(second.decodes)) == ([], ["a"])
    assert core.has_unfinished_requests
    step(core)
    assert request.finish_reason == "length"
    assert request.output_token_ids == solo_answer(request)
    assert not core.has_unfinished_requests


def test_decodes_come_first_and_a_long_prompt_takes_the_rest_of_the_budget() -> None:
    core = make_core(num_blocks=64, budget=8, max_num_seqs=4)
    core.add_request(make_request("short", 3, max_tokens=20))
    step(core)
    core.add_request(make_request("long", 20, first=100))
    plan = [step(core) for _ in range(4)]
    assert [names(scheduled.decodes) for scheduled in plan] == [["short"]] * 3 + [["short", "long"]]
    assert [chunks(scheduled) for scheduled in plan] == [[("long", 0, 7)], [("long", 7, 7)], [("long", 14, 6)], []]


def test_running_prefills_go_before_waiting_requests() -> None:
    core = make_core(num_blocks=64, budget=8)
    core.add_request(make_request("a", 12))
    core.add_request(make_request("b", 6, first=50))
    assert chunks(step(core)) == [("a", 0, 8)]
    assert chunks(step(core)) == [("a", 8, 4), ("b", 0, 4)]
    assert chunks(step(core)) == [("b", 4, 2)]


def test_a_chunk_that_does_not_reach_the_end_samples_nothing() -> None:
    core = make_core(budget=8)
    core.add_request(make_request("a", 12))
    assert [chunk.samples for chunk in step(core).chunks] == [False]
    assert [chunk.samples for chunk in step(core).chunks] == [True]


def test_decodes_stand_in_the_same_list_until_one_joins_or_leaves() -> None:
    core = make_core()
    core.add_request(make_request("a", 3, max_tokens=10))
    step(core)
    lists = [step(core).decodes for _ in range(3)]
    assert lists[0] is lists[1] is lists[2]


def test_a_decode_takes_a_block_only_when_its_last_is_full() -> None:
    core = make_core(block_size=4)
    core.add_request(make_request("a", 4, max_tokens=9))
    updates = [[(update.index, update.block_ids) for update in step(core).table_updates] for _ in range(9)]
    assert updates == [[], [(1, [1])], [], [], [], [(2, [2])], [], [], []]


def test_slots_limit_how_many_run() -> None:
    core = make_core(max_num_seqs=2)
    for number in range(3):
        core.add_request(make_request(f"r{number}", 3, first=10 * number))
    step(core)
    assert sorted(core.scheduler.running) == ["r0", "r1"]
    run(core)


def test_the_latest_is_preempted_and_comes_back_with_the_same_answer() -> None:
    """The lesson's second fault: without preemption all running requests can wait for each other forever."""
    core = expect_short_outputs(make_core(num_blocks=6, block_size=4))
    requests = [make_request(name, 8, max_tokens=12, first=first) for name, first in (("a", 0), ("b", 20))]
    for request in requests:
        core.add_request(request)
    plan = [step(core) for _ in range(6)]
    assert [names(scheduled.preempted) for scheduled in plan] == [[], [], [], [], [], ["b"]]
    assert names(plan[-1].decodes) == ["a"]
    run(core)
    assert [request.num_preemptions for request in requests] == [0, 1]
    assert [request.output_token_ids for request in requests] == [solo_answer(request) for request in requests]


def test_priority_protects_from_preemption_and_jumps_the_queue() -> None:
    core = expect_short_outputs(make_core(num_blocks=6, block_size=4))
    early = make_request("early", 8, max_tokens=12)
    urgent = make_request("urgent", 8, max_tokens=12, first=20, priority=-1)
    core.add_request(early)
    core.add_request(urgent)
    plan = [step(core) for _ in range(6)]
    assert [chunk.request.request_id for chunk in plan[0].chunks] == ["urgent", "early"]
    assert names(plan[-1].preempted) == ["early"]
    run(core)
    assert early.output_token_ids == solo_answer(early)
    assert urgent.num_preemptions == 0


def test_unsatisfiable_admission_is_refused_at_once_and_blocks_nobody() -> None:
    """The lesson's third fault, and the field's: a request over the pool waits forever, and all behind it."""
    core = make_core(num_blocks=64, block_size=16, max_model_len=8192)
    began = time.perf_counter()
    with pytest.raises(RequestTooLargeError, match=r"1500 tokens.*1024 \(64 blocks of 16\).*by 477"):
        core.add_request(make_request("large", 1500))
    assert time.perf_counter() - began < 0.05
    small = make_request("small", 10)
    core.add_request(small)
    run(core)
    assert small.output_token_ids == solo_answer(small)


def test_a_prompt_over_the_token_budget_is_prefilled_in_chunks() -> None:
    core = make_core(num_blocks=64, budget=8)
    request = make_request("a", 100)
    core.add_request(request)
    assert run(core) == 13 + 3
    assert request.output_token_ids == solo_answer(request)


def test_a_prompt_over_the_models_length_is_refused_with_the_numbers() -> None:
    core = make_core(num_blocks=64, max_model_len=32)
    with pytest.raises(RequestTooLargeError, match=r"32 tokens and the model's limit is 32.*by 1"):
        core.add_request(make_request("a", 32))
    core.add_request(make_request("b", 31))
    run(core)


def test_a_lone_request_that_fills_the_pool_ends_with_length() -> None:
    core = make_core(num_blocks=4, block_size=4)
    request = make_request("a", 5, max_tokens=1000)
    core.add_request(request)
    run(core)
    assert request.finish_reason == "length"
    assert request.num_tokens == 16


def test_oversubscribed_streams_all_finish() -> None:
    """Eight streams whose total is three times the pool."""
    core = expect_short_outputs(make_core(num_blocks=16, block_size=4, max_num_seqs=8))
    requests = [make_request(f"r{number}", 6, max_tokens=18, first=30 * number) for number in range(8)]
    for request in requests:
        core.add_request(request)
    run(core)
    assert core.scheduler.stats.num_preemptions > 0
    assert [request.output_token_ids for request in requests] == [solo_answer(request) for request in requests]


def test_outputs_of_a_known_length_need_no_preemption() -> None:
    """The forecast admits what will fit at its longest, not what fits while it is short."""
    core = make_core(num_blocks=43, block_size=4, max_num_seqs=8)
    requests = [make_request(f"r{number}", 16, max_tokens=16, first=50 * number) for number in range(8)]
    for request in requests:
        core.add_request(request)
    step(core)
    step(core)
    assert len(core.scheduler.running) == 5
    run(core)
    assert core.scheduler.stats.num_preemptions == 0


def test_the_victim_is_the_one_with_the_least_work_to_lose() -> None:
    core = expect_short_outputs(make_core(num_blocks=8, block_size=4))
    short = make_request("short", 5, max_tokens=11)
    long = make_request("long", 16, max_tokens=12, first=30)
    core.add_request(short)
    core.add_request(long)
    preempted = [names(step(core).preempted) for _ in range(10)]
    assert ["long"] not in preempted
    assert ["short"] in preempted
    run(core)
    assert [short.output_token_ids, long.output_token_ids] == [solo_answer(short), solo_answer(long)]


def fork_of(parent: Request, name: str, seed: int) -> Request:
    return Request(name, parent.token_ids, parent.params, seed=seed)


@pytest.mark.parametrize("num_prompt", [7, 8])
@pytest.mark.parametrize("max_num_seqs", [2, 8])
def test_samples_of_one_prompt_prefill_it_once_and_share_its_blocks(num_prompt: int, max_num_seqs: int) -> None:
    core = make_core(num_blocks=64, block_size=4, max_num_seqs=max_num_seqs)
    parent = make_request("a", num_prompt, max_tokens=6)
    parent.forks = forks = [fork_of(parent, f"a{seed}", seed) for seed in range(1, 4)]
    core.add_request(parent)
    step(core)
    if max_num_seqs == 8:
        assert core.scheduler.manager.block_pool.num_held == 2
        step(core)
        num_own = 4  # each sample has one block of its own, copied or new
        assert core.scheduler.manager.block_pool.num_held == num_prompt // 4 + num_own
    run(core)
    requests = [parent, *forks]
    assert [request.output_token_ids for request in requests] == [solo_answer(request) for request in requests]
    assert core.scheduler.stats.num_prompt_tokens >= num_prompt
    if max_num_seqs == 8:
        assert core.executor.num_computed_tokens == num_prompt + 4 * 5


def test_forks_of_an_aborted_parent_live_on() -> None:
    core = make_core(budget=8)
    parent = make_request("a", 20)
    parent.forks = [one, two] = [fork_of(parent, "one", 1), fork_of(parent, "two", 2)]
    core.add_request(parent)
    step(core)
    core.finish_request("two", "abort")
    core.finish_request("a", "abort")
    run(core)
    assert one.output_token_ids == solo_answer(one)
    assert two.output_token_ids == []


def test_a_full_queue_refuses() -> None:
    config = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=1, max_waiting_requests=1)
    core = EngineCore(Scheduler(config, PagedKVCacheManager(8, 4), 64), CheckingExecutor(8, 4))
    core.add_request(make_request("a", 3))
    with pytest.raises(QueueFullError, match="1 requests wait already"):
        core.add_request(make_request("b", 3))
    run(core)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def core_with_clock(max_queue_time_s: float | None = None) -> tuple[EngineCore, Clock]:
    clock = Clock()
    config = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=1, max_queue_time_s=max_queue_time_s)
    manager = PagedKVCacheManager(16, 4)
    return EngineCore(Scheduler(config, manager, 64, clock), CheckingExecutor(16, 4)), clock


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    core, clock = core_with_clock()
    running, waiting = (
        Request(name, range(4), SamplingParams(temperature=0, max_tokens=30), deadline_s=5.0) for name in "ab"
    )
    core.add_request(running)
    core.add_request(waiting)
    step(core)
    clock.now = 5.0
    output = core.step()
    assert output.requests == []
    assert output.finished == [running, waiting]
    assert [running.finish_reason, waiting.finish_reason] == ["timeout", "timeout"]
    core.scheduler.check_integrity()


def test_a_request_that_does_not_start_in_time_ends() -> None:
    core, clock = core_with_clock(max_queue_time_s=2.0)
    running, waiting = make_request("a", 4, max_tokens=30), make_request("b", 4, max_tokens=30)
    core.add_request(running)
    core.add_request(waiting)
    step(core)
    clock.now = 3.0
    assert names(core.step().finished) == ["b"]
    run(core)
    assert running.finish_reason == "length"


def test_tenants_share_by_served_tokens() -> None:
    """One tenant's thousand queued requests do not starve another's single one."""
    core = make_core(num_blocks=64, budget=16, max_num_seqs=2)
    for number in range(1000):
        core.add_request(make_request(f"crowd{number}", 4, max_tokens=4, first=5 * number, tenant="crowd"))
    for _ in range(20):
        step(core)
    single = make_request("single", 4, max_tokens=4, tenant="single")
    core.add_request(single)
    for _ in range(12):
        step(core)
    assert single.finish_reason == "length"


def test_two_busy_tenants_get_equal_service() -> None:
    core = make_core(num_blocks=64, budget=16, max_num_seqs=2)
    for number in range(60):
        core.add_request(make_request(f"long{number}", 20, max_tokens=20, first=number, tenant="long"))
        core.add_request(make_request(f"short{number}", 4, max_tokens=4, first=number, tenant="short"))
    for _ in range(150):
        step(core)
    served = [core.scheduler.waiting.served(tenant) for tenant in ("long", "short")]
    assert max(served) - min(served) < 2 * (20 + 2 * 20)


def test_a_long_prompt_does_not_starve_decodes() -> None:
    """Prefill starves decode: every stream gets a token in every step while a long prompt is prefilled."""
    core = make_core(num_blocks=512, budget=64, max_num_seqs=16, max_model_len=2048)
    streams = [make_request(f"s{number}", 4, max_tokens=60, first=10 * number) for number in range(8)]
    for request in streams:
        core.add_request(request)
    step(core)
    core.add_request(make_request("long", 1000, first=100))
    while "long" in core.scheduler.waiting or core.scheduler.running["long"].num_output_tokens == 0:
        scheduled = step(core)
        assert names(scheduled.decodes)[:8] == [request.request_id for request in streams]
        assert scheduled.num_tokens <= 64
    run(core)


def test_a_stop_token_ends_the_output_and_is_part_of_it() -> None:
    core = make_core()
    probe = make_request("probe", 5, max_tokens=6)
    core.add_request(probe)
    run(core)
    stop_id = probe.output_token_ids[3]
    request = Request("a", range(5), SamplingParams(temperature=0, max_tokens=6), eos_token_ids=[stop_id])
    core.add_request(request)
    run(core)
    assert request.output_token_ids == probe.output_token_ids[: probe.output_token_ids.index(stop_id) + 1]
    assert (request.finish_reason, request.stop_token_id) == ("stop", stop_id)


def test_ignore_eos_goes_on() -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, stop_token_ids=[7])
    assert Request("a", range(5), params, eos_token_ids=[3]).stop_ids == {7}


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 5])
def test_a_request_can_be_ended_in_any_state(num_steps: int) -> None:
    """Cancelled while queued, in prefill, mid-chunk or decoding: blocks are back at once, the other goes on."""
    core = make_core(num_blocks=64, budget=8, max_num_seqs=2)
    other = make_request("other", 3, max_tokens=12)
    core.add_request(other)
    core.add_request(make_request("a", 20, first=100))
    for _ in range(num_steps):
        step(core)
    core.finish_request("a", "abort")
    core.scheduler.check_integrity()
    assert core.scheduler.manager.request_ids() in ([], ["other"])
    run(core)
    assert other.output_token_ids == solo_answer(other)
    assert core.finish_request("a", "abort") is None


def test_cancelled_work_is_kept() -> None:
    core = make_core(num_blocks=64, budget=8)
    core.add_request(make_request("a", 20))
    step(core)
    step(core)
    core.finish_request("a", "abort")
    again = make_request("b", 20)
    core.add_request(again)
    run(core)
    assert again.num_cached_tokens == 16


def test_the_next_turn_of_a_conversation_reuses_all_of_the_last() -> None:
    core = make_core(num_blocks=64)
    first = make_request("a", 9, max_tokens=6)
    core.add_request(first)
    run(core)
    prompt = [*first.token_ids, 1, 2, 3]
    second = Request("b", prompt, SamplingParams(temperature=0, max_tokens=4))
    core.add_request(second)
    run(core)
    assert second.num_cached_tokens == 9 + 6 - 1  # the last generated token was never fed back
    assert second.output_token_ids == solo_answer(second)


def test_requests_with_prompt_logprobs_compute_their_whole_prompt() -> None:
    core = make_core()
    core.add_request(make_request("a", 12))
    run(core)
    request = Request("b", range(12), SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))
    core.add_request(request)
    run(core)
    assert request.num_cached_tokens == 0


def test_an_id_in_use_and_an_empty_prompt_are_refused() -> None:
    core = make_core()
    core.add_request(make_request("a", 3))
    with pytest.raises(RequestError, match="'a' is in use"):
        core.add_request(make_request("a", 3))
    with pytest.raises(RequestError, match="empty"):
        core.add_request(make_request("b", 0))
