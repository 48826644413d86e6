"""How much of the KV memory holds tokens: one contiguous piece per request, or pages.

    python benchmarks/memory_waste.py TRACE.jsonl.gz [--max-model-len 32768] [--pool 16] [--plot FILE.png] [--json]

Replays the lengths of a trace's requests, all waiting from the start, first come first served, one token per running
request and step, prompts computed at once. Four managers get the same pool. The first three give each request one
contiguous piece for its whole life: of the longest length allowed, of exactly the length that it will have (which
nobody knows in practice), or of that rounded up to a power of two. The fourth is Octavo: its scheduler and its KV cache
manager with blocks of 16, outputs of unknown length. Requests over ``--max-model-len`` are refused, as an engine
refuses them, and counted.

Where each token slot of the pool is, on average over the steps in which somebody waits:

    tokens      holds KV of a running request
    kept        holds KV of an ended or preempted request, for reuse until somebody needs the place
    to come     reserved for tokens that its request has not generated yet
    never       reserved, and its request will never use it
    free        in nobody's hands: too small or too scattered for the next request, or kept back for those that grow

The picture is figure 2 of "Efficient Memory Management for Large Language Model Serving with PagedAttention" (Kwon et
al., SOSP 2023), with this trace. It needs matplotlib (``pip install octavo[plot]``).
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contiguous_memory import Buddies, ContiguousMemory, ExactLength, MaximumLength
from null_executor import STOP_TOKEN, NullExecutor
from request_lengths import RequestLength, read_lengths
from rows import Row, print_rows

from octavo.config import SchedulerConfig
from octavo.kvcache.manager import PagedKVCacheManager
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16


@dataclass(slots=True)
class Usage:
    """Token slots by what they hold, summed over steps."""

    pool: int
    steps: int = 0
    running: int = 0
    tokens: int = 0
    kept: int = 0
    to_come: int = 0
    never: int = 0
    free: int = 0

    def count(self, *, running: int, tokens: int, kept: int, to_come: int, never: int, free: int) -> None:
        """One more step."""
        assert tokens + kept + to_come + never + free == self.pool, (tokens, kept, to_come, never, free, self.pool)
        self.steps += 1
        self.running += running
        self.tokens += tokens
        self.kept += kept
        self.to_come += to_come
        self.never += never
        self.free += free

    def row(self, manager: str, num_steps: int) -> Row:
        """Averages; shares of the pool, and of what requests have taken of it."""
        total = self.steps * self.pool
        shares = {name: getattr(self, name) / total for name in ("tokens", "kept", "to_come", "never", "free")}
        taken = self.tokens + self.to_come + self.never
        return {
            "manager": manager,
            **{f"{name}_share": share for name, share in shares.items()},
            "tokens_of_taken": self.tokens / taken,
            "mean_running": self.running / self.steps,
            "num_steps": num_steps,
        }


def replay_contiguous(lengths: Sequence[RequestLength], memory: ContiguousMemory, pool: int) -> Row:
    """Serve all requests from contiguous pieces."""
    usage = Usage(pool)
    waiting = deque(enumerate(lengths))
    ends: list[tuple[int, int, RequestLength, int]] = []  # step, request, its length, slots taken
    tokens = final = taken = step = 0
    while waiting or ends:
        while waiting:
            request_id, length = waiting[0]
            slots = memory.place(request_id, length)
            if slots is None:
                break
            waiting.popleft()
            heapq.heappush(ends, (step + length.num_output_tokens, request_id, length, slots))
            tokens += length.num_prompt_tokens
            final += length.num_tokens
            taken += slots
        tokens += len(ends)
        step += 1
        if waiting:
            never, free = taken - final, pool - taken
            usage.count(running=len(ends), tokens=tokens, kept=0, to_come=final - tokens, never=never, free=free)
        while ends and ends[0][0] <= step:
            _, request_id, length, slots = heapq.heappop(ends)
            memory.remove(request_id)
            tokens -= length.num_tokens
            final -= length.num_tokens
            taken -= slots
    return usage.row(memory.name, step)


def replay_octavo(lengths: Sequence[RequestLength], pool: int, max_model_len: int) -> Row:
    """Serve all requests with the real scheduler and manager."""
    manager = PagedKVCacheManager(pool // BLOCK_SIZE, BLOCK_SIZE)
    config = SchedulerConfig(max_num_batched_tokens=pool, max_num_seqs=min(len(lengths), pool))
    scheduler = Scheduler(config, manager, max_model_len)
    executor = NullExecutor(random.Random(1))
    params = SamplingParams(temperature=0, max_tokens=None, stop_token_ids=(STOP_TOKEN,), ignore_eos=True)
    for number, length in enumerate(lengths):
        executor.output_lengths[str(number)] = length.num_output_tokens
        prompt = [number] * length.num_prompt_tokens  # no two have a prefix in common
        scheduler.add_request(Request(str(number), prompt, params))
    usage = Usage(pool)
    while scheduler.has_unfinished_requests:
        scheduled = scheduler.schedule()
        if len(scheduler.waiting) > 0:
            running = list(scheduler.running.values())
            tokens = sum(request.num_tokens for request in running)
            held = sum(len(manager.get_block_table(request.request_id)) for request in running) * BLOCK_SIZE
            kept = manager.block_pool.get_num_cached_blocks() * BLOCK_SIZE
            free = pool - held - kept
            usage.count(running=len(running), tokens=tokens, kept=kept, to_come=0, never=held - tokens, free=free)
        scheduler.update(scheduled, executor.compute(scheduled))
    manager.check_integrity()
    assert scheduler.stats.num_finished == len(lengths), scheduler.stats
    recomputed = scheduler.stats.num_recomputed_tokens / scheduler.stats.num_computed_tokens
    row = usage.row(f"Octavo, blocks of {BLOCK_SIZE}", scheduler.stats.num_steps)
    return {**row, "recomputed_share": recomputed}


# ---- the picture ---------------------------------------------------------------------------------------------------

SEGMENTS = {
    "tokens_share": ("tokens of running requests", "#2a6f97", "white"),
    "kept_share": ("kept for reuse", "#89c2d9", "black"),
    "to_come_share": ("reserved for tokens to come", "#e9c46a", "black"),
    "never_share": ("reserved, never used", "#d1495b", "white"),
    "free_share": ("unused", "#dddddd", "black"),
}
"""Key of a row → its name in the picture, its colour, and the colour of figures on it."""
MIN_LABELLED_SHARE = 0.03
MIN_NAMED_SHARE = 0.015


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """A bar per manager; each part has its share inside, and its name above the bar in which it first shows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.4), dpi=110)
    unnamed = set(SEGMENTS)
    for index, row in enumerate(rows):
        left = 0.0
        for key, (name, colour, ink) in SEGMENTS.items():
            share = _number(row, key)
            axes.barh(index, share, left=left, color=colour, edgecolor="white", height=0.55)
            if share >= MIN_LABELLED_SHARE:
                axes.text(left + share / 2, index, f"{share:.0%}", ha="center", va="center", color=ink)
            if share >= MIN_NAMED_SHARE and key in unnamed:
                unnamed.remove(key)
                align = "left" if left < 0.5 else "right" if left > 0.85 or share < MIN_LABELLED_SHARE else "center"
                at = {"left": left, "center": left + share / 2, "right": left + share}[align]
                axes.text(at, index - 0.33, name, ha=align, va="bottom", fontsize=9)
            left += share
        running = _number(row, "mean_running")
        axes.text(1.015, index, f"{running:.0f} requests\nrun at once", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [str(row["manager"]).replace(", ", "\n") for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_xlabel("share of the KV memory")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(title, loc="left", fontsize=11, pad=18)
    figure.tight_layout()
    figure.savefig(path)


def _number(row: Row, key: str) -> float:
    value = row[key]
    assert isinstance(value, (int, float)), (key, value)
    return float(value)


# ---- command line --------------------------------------------------------------------------------------------------

COLUMNS = {
    "manager": "manager",
    "tokens_share": "tokens",
    "kept_share": "kept",
    "to_come_share": "to come",
    "never_share": "never",
    "free_share": "free",
    "tokens_of_taken": "tokens ÷ taken",
    "mean_running": "running",
    "times_running": "× the first",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="gzipped JSON lines with input_length and output_length")
    parser.add_argument("--max-model-len", type=int, default=32_768, help="longest request, prompt and output")
    parser.add_argument("--pool", type=int, default=16, help="size of the pool, in longest requests")
    parser.add_argument("--divisor", type=int, default=1, help="divide all lengths by this first")
    parser.add_argument("--num-requests", type=int, default=2000, help="requests to serve")
    parser.add_argument("--plot", type=Path, help="draw a picture into this PNG file")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    arguments = parser.parse_args()

    lengths = [length.scaled(arguments.divisor, arguments.divisor) for length in read_lengths(arguments.trace)]
    fitting = [length for length in lengths if length.num_tokens <= arguments.max_model_len]
    served, num_refused = fitting[: arguments.num_requests], len(lengths) - len(fitting)
    pool = arguments.pool * arguments.max_model_len
    memories = (MaximumLength(pool, arguments.max_model_len), ExactLength(pool), Buddies(pool))
    results = [replay_contiguous(served, memory, pool) for memory in memories]
    results.append(replay_octavo(served, pool, arguments.max_model_len))
    first = _number(results[0], "mean_running")
    rows = [{**row, "times_running": _number(row, "mean_running") / first} for row in results]
    note = (
        f"{len(served):,} requests in a pool of {pool:,} tokens; {num_refused:,} of the trace's {len(lengths):,} "
        f"are longer than {arguments.max_model_len:,} tokens and were refused."
    )
    print_rows(rows, COLUMNS, as_json=arguments.json, note=note)
    if arguments.plot is not None:
        draw(rows, f"Where the KV memory goes: {len(served):,} real chat requests", arguments.plot)


if __name__ == "__main__":
    main()
