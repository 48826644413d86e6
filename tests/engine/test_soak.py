"""Ten thousand short requests through one engine, with every way to end: nothing is lost, and memory does not grow."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path

import pytest
from support.scripted_executor import SaboteurExecutor

from octavo import LLM, SamplingParams
from octavo.errors import RequestError
from octavo.scheduler.output import SchedulerOutput

NUM_REQUESTS = 10_000
WARM_UP = 1_000
MAX_GROWTH_BYTES = 5_000_000


class FailureError(Exception):
    """Nothing of ours."""


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        n=rng.choice([1, 1, 1, 1, 2]),
        temperature=rng.choice([0.0, 1.0]),
        seed=rng.choice([None, rng.randrange(100)]),
        max_tokens=rng.choice([1, 1, 2, 3, 6]),
        stop=rng.choice([(), (), ("a", "the"), ("s", "t", "i")]),
        stop_token_ids=rng.sample(range(2, 128), rng.choice([0, 0, 30])),
        logprobs=rng.choice([None, None, None, 2]),
        prompt_logprobs=rng.choice([None] * 9 + [1]),
        presence_penalty=rng.choice([0.0, 0.0, 0.5]),
        min_tokens=rng.choice([0, 0, 0, 1]),
    )


@pytest.mark.parametrize("seed", [1])
def test_ten_thousand_requests_with_aborts_stops_and_errors(tiny: str, seed: int) -> None:
    rng = random.Random(seed)
    llm = LLM(tiny, num_threads=1, num_blocks=60, block_size=8, max_num_seqs=32, max_num_batched_tokens=256)
    engine, scheduler = llm.engine, llm.engine.core.scheduler
    heads = [[rng.randrange(2, 128) for _ in range(rng.randrange(20))] for _ in range(20)]

    def sabotage(scheduled: SchedulerOutput) -> None:
        if rng.random() < 0.02:
            raise FailureError

    engine.core.executor = SaboteurExecutor(engine.core.executor, after=sabotage)
    alive: set[str] = set()
    ends: dict[str | None, int] = {}
    num_added = num_refused = num_failures = 0
    resident = 0
    while num_added < NUM_REQUESTS or alive:
        while num_added < NUM_REQUESTS and len(alive) < 40:
            prompt = rng.choice(heads) + [rng.randrange(2, 128) for _ in range(rng.randrange(1, 6))]
            prompt *= 40 if rng.random() < 0.01 else 1  # mostly too long
            num_added += 1
            try:
                deadline_s = rng.choice([float("inf")] * 9 + [0.002])
                engine.add_request(
                    f"r{num_added}", prompt, params(rng), priority=rng.randrange(2), deadline_s=deadline_s
                )
                alive.add(f"r{num_added}")
            except RequestError:
                num_refused += 1
            if num_added == WARM_UP:
                resident = resident_bytes()
        try:
            deltas = engine.step()
        except FailureError:
            num_failures += 1
            gone = {request_id for request_id in alive if not engine.is_unfinished(request_id)}
            ends["error"] = ends.get("error", 0) + len(gone)
            alive -= gone
            continue
        for request_id in sorted(alive):
            if rng.random() < 0.01:
                deltas += engine.abort_request(request_id)
        for delta in deltas:
            if delta.output is not None:
                alive.remove(delta.request_id)
                ends[delta.finish_reason] = ends.get(delta.finish_reason, 0) + 1
    growth = resident_bytes() - resident

    assert sum(ends.values()) + num_refused == NUM_REQUESTS
    assert num_failures > 3
    assert min(ends[reason] for reason in ("stop", "length", "abort", "timeout", "error")) > 50, ends
    assert num_refused > 20
    assert scheduler.stats.num_cached_tokens > 10_000
    scheduler.check_integrity()
    pool = scheduler.manager.block_pool
    assert (pool.num_held, pool.get_num_free_blocks()) == (0, 60)
    assert not engine.has_unfinished_requests
    assert growth < MAX_GROWTH_BYTES, f"{growth:,} bytes"
