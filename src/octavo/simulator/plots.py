"""One picture of a run: how long people waited, and how full the fleet was. Needs matplotlib (``octavo[plot]``)."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from octavo.errors import ConfigError
from octavo.simulator.recorder import Recorder
from octavo.simulator.report import Report

BLUE, ORANGE, GREEN, GREY = "#1f5fa8", "#c45a11", "#2c7a3f", "#777777"
MAX_POINTS = 500


def require_matplotlib() -> None:
    """Raises :class:`ConfigError` if it is not installed: worth knowing before a long run."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib; install octavo[plot]") from error


def draw_report(report: Report, recorder: Recorder, title: str, path: Path) -> None:
    """Save a PNG. Lines carry their names; there is no legend to match.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    times, tokens, states, memory = figure.subplots(2, 2).flat
    level = report.service_level
    _draw_shares(times, "Share of answers that were faster", "seconds (log scale)")
    _draw_quantiles(times, recorder.ttft_s, "first token", BLUE, 0.5)
    _draw_quantiles(times, recorder.e2e_s, "whole answer", ORANGE, 0.5)
    _draw_limit(times, level["ttft_s"], f"first token\nwithin {level['ttft_s']:g} s", BLUE)
    _draw_shares(tokens, "Share of answers with a faster flow of tokens", "seconds per token, mean of an answer")
    _draw_quantiles(tokens, array("d", (x for x in recorder.tpot_s if x > 0)), "per token", GREEN, 0.5)
    _draw_limit(tokens, level["tpot_s"], f"within\n{level['tpot_s']:g} s", GREEN)
    minutes = [index * report.timeline["interval_s"] / 60 for index in range(len(report.timeline["running"]))]
    states.set_title("Requests in the fleet", loc="left", fontsize=11)
    _draw_line(states, minutes, report.timeline["running"], "running", BLUE)
    _draw_line(states, minutes, report.timeline["waiting"], "waiting", ORANGE)
    memory.set_title("Share of the fleet in use, %", loc="left", fontsize=11)
    memory.set_ylim(0, 105)
    busy = [100 * value / report.num_replicas for value in report.timeline["busy_replicas"]]
    _draw_line(memory, minutes, busy, "time busy", GREY)
    _draw_line(memory, minutes, [100 * value for value in report.timeline["occupancy"]], "KV blocks held", GREEN)
    for axes in (states, memory):
        axes.set_xlabel("minutes")
        axes.set_xlim(0, minutes[-1] * 1.22 if minutes else 1)
    for axes in (times, tokens, states, memory):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=130)


def _draw_shares(axes: Any, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(unit)


def _draw_quantiles(axes: Any, values: array[float], name: str, color: str, label_at: float) -> None:
    """A distribution; its name stands beside the line at height ``label_at``."""
    ranked = sorted(values)
    if not ranked:
        return
    num_points = min(len(ranked), MAX_POINTS)
    shares = [(number + 1) / num_points for number in range(num_points)]
    xs = [max(ranked[round(share * (len(ranked) - 1))], 1e-6) for share in shares]
    axes.plot(xs, shares, color=color, linewidth=1.8)
    middle = xs[int(label_at * (num_points - 1))]
    axes.annotate(f" {name}\n {middle:.2g} s", (middle, label_at), color=color, va="top", ha="left")


def _draw_limit(axes: Any, value: float, name: str, color: str) -> None:
    axes.axvline(value, color=color, linestyle=":", linewidth=1.2)
    axes.annotate(name, (value, 0.02), xytext=(4, 0), textcoords="offset points", color=color, fontsize=9, va="bottom")


def _draw_line(axes: Any, xs: list[float], ys: list[float], name: str, color: str) -> None:
    axes.plot(xs, ys, color=color, linewidth=1.4)
    if xs:
        axes.annotate(f" {name}", (xs[-1], _last_level(ys)), color=color, va="center")


def _last_level(ys: list[float]) -> float:
    """Where a label at the end of a line belongs: the mean of the last tenth, without the cut-off end."""
    tail = ys[-max(len(ys) // 10, 2) : -1] or ys
    return sum(tail) / len(tail)
