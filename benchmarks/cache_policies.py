"""How much of the possible does each eviction policy hit? Real traces through the engine's own KV cache manager.

    python benchmarks/cache_policies.py TRACES_FOLDER [--policies lru,reuse] [--traces agents-a,chat]
        [--percent 1,2,5,10,20] [--jobs N] [--plot FILE.png] [--json]

A cell is the share of all prompt tokens that were found in the cache, with a pool of so many percent of the trace's
distinct blocks (512 tokens each). ``optimum`` is what no policy can exceed, for it knows the future. The last column
is the mean share of the optimum. Nothing here is timed: the figures are the same on every machine, up to ties.

The folder holds ``conversation_trace.jsonl.gz`` and ``synthetic_trace.jsonl.gz`` (Mooncake, github
kvcache-ai/Mooncake, ``FAST25-release/traces``, gzipped) and ``claude_code_sessions.jsonl.gz`` (github
callanjfox/kv-cache-tester, one line for each session). ``reuse`` was tuned on ``agents-a``, ``chat`` and
``synthetic``; ``agents-b`` is for judging. ``--plot`` needs matplotlib.
"""

from __future__ import annotations

import argparse
import itertools
import os
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from cache_replay.optimum import optimum
from cache_replay.replay import replay
from cache_replay.traces import BLOCK_TOKENS, TRACES, TraceRequest
from rows import Row, Value, print_rows

from octavo.kvcache.policies.registry import POLICY_NAMES, create_policy

OPTIMUM = "optimum"
NAME_HEIGHT = 0.055
COLOURS = ("#777777", "#1f5fa8", "#2c7a3f", "#8a5fa8", "#a8821f", "#c45a11")


@lru_cache(maxsize=1)
def load(folder: Path, trace: str) -> tuple[list[TraceRequest], int, int]:
    """A trace, with its numbers of prompt tokens and of distinct blocks. Cells of one trace come in a row."""
    requests = TRACES[trace](folder)
    num_distinct = len({block for request in requests for block in request.blocks})
    return requests, sum(request.num_tokens for request in requests), num_distinct


def hit_rate(folder: Path, trace: str, policy: str, percent: float) -> float:
    """Token hit rate of one cell, in percent."""
    requests, num_tokens, num_distinct = load(folder, trace)
    capacity = max(1, int(num_distinct * percent / 100))
    if policy == OPTIMUM:
        num_hits = optimum([request.blocks for request in requests], capacity)
    else:
        num_hits = replay(requests, capacity, create_policy(policy, capacity, BLOCK_TOKENS))
    return 100 * num_hits * BLOCK_TOKENS / num_tokens


def measure(folder: Path, traces: list[str], policies: list[str], percents: list[float], num_jobs: int) -> list[Row]:
    """All cells, ``num_jobs`` at once, in as many processes."""
    cells = list(itertools.product(traces, [*policies, OPTIMUM], percents))
    with ProcessPoolExecutor(num_jobs, get_context("spawn")) as pool:
        rates = dict(zip(cells, pool.map(hit_rate, itertools.repeat(folder), *zip(*cells, strict=True)), strict=True))
    rows: list[Row] = []
    for trace in traces:
        for policy in [*policies, OPTIMUM]:
            found = {percent: rates[trace, policy, percent] for percent in percents}
            share = 100 * fmean(rate / rates[trace, OPTIMUM, percent] for percent, rate in found.items())
            row: dict[str, Value] = {"trace": trace, "policy": policy}
            row |= {f"{percent:g} %": round(rate, 2) for percent, rate in found.items()}
            rows.append(row | {"share_of_optimum": round(share, 2)})
    for policy in policies:
        shares = [float(str(row["share_of_optimum"])) for row in rows if row["policy"] == policy]
        rows.append({"trace": "all", "policy": policy, "share_of_optimum": round(fmean(shares), 2)})
    return rows


def spread(heights: list[float]) -> list[float]:
    """Heights of names beside the ends of lines, in shares of the panel: in the lines' order, with room for each."""
    placed: dict[int, float] = {}
    for number in sorted(range(len(heights)), key=lambda number: -heights[number]):
        placed[number] = min(heights[number], min(placed.values(), default=2.0) - NAME_HEIGHT)
    return [placed[number] for number in range(len(heights))]


def draw(rows: list[Row], percents: list[float], path: Path) -> None:
    """One panel for each trace; lines carry their names."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    traces = list(dict.fromkeys(str(row["trace"]) for row in rows if row["trace"] != "all"))
    num_columns = min(len(traces), 2)
    num_rows = -(-len(traces) // num_columns)
    figure = Figure(figsize=(5 * num_columns, 4.2 * num_rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels: Any = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    for axes in panels[len(traces) :]:
        axes.remove()
    for axes, trace in zip(panels, traces, strict=False):
        axes.set_title(f"{trace}: prompt tokens found in the cache, %", loc="left", fontsize=10)
        axes.set_xscale("log")
        axes.set_xticks(percents, [f"{percent:g}" for percent in percents])
        axes.minorticks_off()
        axes.set_xlabel("pool, % of the trace's distinct blocks")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        lines = [row for row in rows if row["trace"] == trace]
        ends = [float(str(row[f"{percents[-1]:g} %"])) for row in lines]
        for number, row in enumerate(lines):
            colour = "black" if row["policy"] == OPTIMUM else COLOURS[number % len(COLOURS)]
            axes.plot(
                percents, [float(str(row[f"{percent:g} %"])) for percent in percents], color=colour, linewidth=1.8
            )
        low, high = axes.get_ylim()
        names = zip(axes.get_lines(), lines, spread([(end - low) / (high - low) for end in ends]), strict=True)
        for line, row, height in names:
            style = {"color": line.get_color(), "fontsize": 9, "weight": "bold", "va": "center"}
            axes.text(1.01, height, str(row["policy"]), transform=axes.transAxes, **style)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with the traces")
    parser.add_argument("--policies", default=",".join(POLICY_NAMES), help=f"default: {','.join(POLICY_NAMES)}")
    parser.add_argument("--traces", default=",".join(TRACES), help=f"default: {','.join(TRACES)}")
    parser.add_argument("--percent", default="1,2,5,10,20", help="pool sizes, in %% of distinct blocks")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cells at once; default: one per CPU")
    parser.add_argument("--plot", type=Path, help="draw a picture into this PNG file")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    arguments = parser.parse_args()
    policies, traces = arguments.policies.split(","), arguments.traces.split(",")
    for kind, names, known in (("policy", policies, POLICY_NAMES), ("trace", traces, tuple(TRACES))):
        for name in names:
            if name not in known:
                parser.error(f"unknown {kind} {name!r}; known: {', '.join(known)}")
    percents = [float(percent) for percent in arguments.percent.split(",")]
    rows = measure(arguments.folder, traces, policies, percents, arguments.jobs)
    columns = {"trace": "trace", "policy": "policy"} | {f"{percent:g} %": f"{percent:g} %" for percent in percents}
    columns["share_of_optimum"] = "share of optimum, %"
    if arguments.json:
        print_rows(rows, columns, as_json=True)
    else:  # two decimals: policies differ by less than one percent
        texts = [
            {key: f"{value:.2f}" if isinstance(value, float) else value for key, value in row.items()} for row in rows
        ]
        print_rows(texts, columns, as_json=False)
    if arguments.plot is not None:
        draw(rows, percents, arguments.plot)


if __name__ == "__main__":
    main()
