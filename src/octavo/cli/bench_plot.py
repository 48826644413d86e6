"""One picture of a run against a server. Needs matplotlib (``octavo[plot]``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.cli.bench_client import Answer
from octavo.cli.bench_run import BenchReport
from octavo.errors import ConfigError

BLUE, ORANGE, GREEN = "#1f5fa8", "#c45a11", "#2c7a3f"


def draw_run(report: BenchReport, answers: Sequence[Answer], title: str, path: Path) -> None:
    """Save a PNG: how long answers took, and how their tokens flowed. Lines carry their names.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install 'octavo[plot]'") from error
    good = [answer for answer in answers if answer.error is None]
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    rates = f"{report.output_tokens_per_s:.0f} tokens/s, {report.num_failed} of {report.num_requests} requests failed"
    figure.suptitle(f"{title}: {rates}", x=0.01, ha="left", fontsize=13, fontweight="bold")
    times, flow = figure.subplots(1, 2)
    _draw(times, [answer.ttft_s for answer in good], "first token", BLUE)
    _draw(times, [answer.e2e_s for answer in good], "whole answer", ORANGE)
    _draw(flow, [gap for answer in good for gap in answer.gaps_s], "text to text", GREEN)
    _draw(flow, [answer.tpot_s for answer in good if answer.num_output_tokens > 1], "per token", BLUE)
    for axes, name in ((times, "Share of answers that were faster"), (flow, "Share of gaps that were shorter")):
        axes.set_title(name, loc="left", fontsize=11)
        axes.set_xscale("log")
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("seconds (log scale)")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=130)


def _draw(axes: Any, values: Sequence[float], name: str, color: str) -> None:
    ranked = sorted(max(value, 1e-6) for value in values)
    if not ranked:
        return
    shares = [(index + 1) / len(ranked) for index in range(len(ranked))]
    axes.plot(ranked, shares, color=color, linewidth=1.8)
    middle = ranked[len(ranked) // 2]
    axes.annotate(f" {name}\n {middle:.2g} s", (middle, 0.5), color=color, va="top", ha="left")
