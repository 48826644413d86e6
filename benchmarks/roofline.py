"""Draw what throughput.py and compare/run.py measured beside the machine's limits.

    python benchmarks/throughput.py --json > throughput.jsonl
    python benchmarks/compare/run.py ENVIRONMENTS TWIN --json > compare.jsonl
    python benchmarks/roofline.py throughput.jsonl [--compare compare.jsonl] --plot docs/images/roofline.png

A pass through the model reads all weights once, for however many tokens. So with few tokens per pass the limit is the
memory (each token more is free), with many it is arithmetic: the roofline model (Williams et al., CACM 2009), in tokens
per second instead of operations. Needs matplotlib (``pip install octavo[plot]``).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

COLOURS = {
    "octavo": "#d1495b",
    "llama-cpp": "#2a6f97",
    "openvino": "#7b2d8b",
    "vllm": "#3a7d44",
    "transformers": "#8d6e63",
}
PREFILL_TOKENS = 512
LABEL_DISTANCE = 1.22


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("{")]


def points_of(engine: dict[str, Any]) -> dict[int, float]:
    """Tokens per pass → tokens per second of decode, from a row of compare/run.py."""
    return {int(key.removeprefix("decode_")): value for key, value in engine.items() if key.startswith("decode_")}


def spread(heights: dict[str, float]) -> dict[str, float]:
    """Heights of labels: as near to the given ones as a distance that can be read allows, lowest first."""
    placed: dict[str, float] = {}
    lowest = 0.0
    for name, height in sorted(heights.items(), key=lambda item: item[1]):
        placed[name] = max(height, lowest)
        lowest = placed[name] * LABEL_DISTANCE
    return placed


def draw(rows: list[dict[str, Any]], engines: list[dict[str, Any]], path: Path) -> None:
    """Tokens per pass against tokens per second, both logarithmic; every line is named at its end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.4), dpi=110)
    first = rows[0]
    per_pass = first["stream_bytes_per_s"] / first["weight_bytes"]
    flat = first["peak_flops"] / first["flops_per_output_token"]
    passes = [1.0, flat / per_pass, 1024.0]
    axes.plot(passes, [min(per_pass * tokens, flat) for tokens in passes], color="black", linewidth=1.5)
    axes.text(1.25, per_pass * 1.05, f"memory: {first['stream_bytes_per_s'] / 1e9:.0f} GB/s")
    axes.text(passes[1] * 1.2, flat * 1.06, f"{first['isa']}: {first['peak_flops'] / 1e9:,.0f} GFLOP/s")

    decode = {row["streams"]: row["decode_tokens_per_s"] for row in rows}
    octavo = {"engine": "octavo", "prefill_tokens_per_s": first["prefill_tokens_per_s"]}
    octavo |= {f"decode_{streams}": value for streams, value in decode.items()}
    every = [octavo, *(engine for engine in engines if engine["engine"] != "octavo")]
    for engine in every:
        points, colour = points_of(engine), COLOURS[engine["engine"]]
        width = 2.5 if engine is octavo else 1.2
        axes.plot(list(points), list(points.values()), "o-", color=colour, linewidth=width, markersize=4)
        axes.plot(PREFILL_TOKENS, engine["prefill_tokens_per_s"], "s", color=colour)
    labels: dict[int, dict[str, float]] = {PREFILL_TOKENS: {}}  # by where they stand
    for engine in every:
        last, height = max(points_of(engine).items())
        labels.setdefault(last, {})[engine["engine"]] = height
        labels[PREFILL_TOKENS][engine["engine"]] = engine["prefill_tokens_per_s"]
    for at, values in labels.items():
        for name, height in spread(values).items():
            axes.text(at * 1.1, height, name, va="center", color=COLOURS[name])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = [*decode, PREFILL_TOKENS]
    axes.set_xticks(ticks, [*map(str, decode), f"prefill\nof {PREFILL_TOKENS}"])
    axes.minorticks_off()
    steps = [tick * 10**power for power in range(1, 6) for tick in (1, 2, 5)]
    axes.set_ylim(top=flat * 1.5)
    axes.set_yticks([step for step in steps if axes.get_ylim()[0] <= step <= flat * 1.5])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlim(0.9, 1500)
    axes.set_xlabel("streams that decode together: tokens per reading of the weights")
    axes.set_title("tokens per second, and what the machine could do", loc="left", fontsize=11)
    axes.grid(axis="y", color="#eeeeee")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("throughput", type=Path, help="what throughput.py --json printed")
    parser.add_argument("--compare", type=Path, help="what compare/run.py --json printed")
    parser.add_argument("--plot", type=Path, required=True, help="PNG file to draw")
    arguments = parser.parse_args()
    engines = read_rows(arguments.compare) if arguments.compare is not None else []
    draw(read_rows(arguments.throughput), engines, arguments.plot)


if __name__ == "__main__":
    main()
