"""What a simulation found, as a value; its JSON and its page of text."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from octavo.simulator.fleet import Fleet
from octavo.simulator.recorder import Histogram

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles, seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution:
        """Of single values (nearest rank)."""
        ranked = sorted(values)
        if not ranked:
            return cls(*[math.nan] * 5)
        picked = [ranked[math.ceil(percent / 100 * len(ranked)) - 1] for percent in PERCENTILES]
        return cls(math.fsum(ranked) / len(ranked), *picked)

    @classmethod
    def of_histogram(cls, histogram: Histogram) -> Distribution:
        """Of counted values."""
        return cls(histogram.mean, *(histogram.percentile(percent) for percent in PERCENTILES))


@dataclass(frozen=True, slots=True)
class Report:
    """A fleet through a workload.

    Attributes:
        duration_s: from the first arrival to the last token, simulated.
        ttft_s, itl_s, tpot_s, e2e_s: time to first token, gaps between tokens, their mean per answer, whole answers.
        goodput_share: of all requests, refused ones included, those that met the service level.
        goodput_per_s: how many of them per second.
        hit_rate: share of the prompt tokens that came from the prefix cache.
        num_recomputed_tokens: computed again because of preemptions.
        busy_share: of the replicas' time, until the last token.
        occupancy: share of KV blocks held by running requests: mean over busy and idle time, and the fullest interval.
        timeline: means over equal intervals, summed over replicas except for ``occupancy``.
    """

    num_replicas: int
    num_requests: int
    num_refused: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    ttft_s: Distribution
    itl_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution
    service_level: dict[str, float]
    goodput_share: float
    goodput_per_s: float
    hit_rate: float
    num_preemptions: int
    num_recomputed_tokens: int
    num_computed_tokens: int
    num_steps: int
    busy_share: float
    occupancy_mean: float
    occupancy_max: float
    timeline: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain values; NaN (a percentile of nothing) becomes ``None``."""
        return _plain(dataclasses.asdict(self))  # type: ignore[no-any-return]


def make_report(fleet: Fleet) -> Report:
    """Sum up a fleet that has run."""
    recorder, level = fleet.recorder, fleet.recorder.service_level
    num_finished, num_replicas = len(recorder.ttft_s), len(fleet.replicas)
    start_s = min(recorder.arrival_s, default=0.0)
    end_s = max((a + e for a, e in zip(recorder.arrival_s, recorder.e2e_s, strict=True)), default=0.0)
    duration_s = max(end_s - start_s, 1e-9)
    num_good = num_finished - recorder.num_missed
    num_prompt = sum(recorder.num_prompt_tokens)
    timeline = recorder.timeline
    num_blocks = num_replicas * fleet.config.num_blocks
    occupancy = [held / num_blocks for held in timeline.means(0)]
    stats = [replica.core.scheduler.stats for replica in fleet.replicas]
    return Report(
        num_replicas=num_replicas,
        num_requests=num_finished,
        num_refused=len(recorder.refused),
        duration_s=duration_s,
        requests_per_s=num_finished / duration_s,
        output_tokens_per_s=sum(recorder.num_output_tokens) / duration_s,
        prompt_tokens_per_s=num_prompt / duration_s,
        ttft_s=Distribution.of(recorder.ttft_s),
        itl_s=Distribution.of_histogram(recorder.itl_s),
        tpot_s=Distribution.of(_longer_than_one(recorder.tpot_s, recorder.num_output_tokens)),
        e2e_s=Distribution.of(recorder.e2e_s),
        service_level={"ttft_s": level.ttft_s, "tpot_s": level.tpot_s},
        goodput_share=num_good / max(num_finished + len(recorder.refused), 1),
        goodput_per_s=num_good / duration_s,
        hit_rate=sum(recorder.num_cached_tokens) / max(num_prompt, 1),
        num_preemptions=sum(recorder.num_preemptions),
        num_recomputed_tokens=sum(recorder.num_recomputed_tokens),
        num_computed_tokens=sum(each.num_computed_tokens for each in stats),
        num_steps=sum(each.num_steps for each in stats),
        busy_share=sum(row[3] for row in timeline.integrals) / (num_replicas * duration_s),
        occupancy_mean=sum(row[0] for row in timeline.integrals) / (num_blocks * duration_s),
        occupancy_max=max(occupancy, default=0.0),
        timeline={
            "interval_s": timeline.interval_s,
            "occupancy": occupancy,
            "running": timeline.means(1),
            "waiting": timeline.means(2),
            "busy_replicas": timeline.means(3),
        },
    )


def _longer_than_one(tpot_s: array[float], num_output_tokens: array[int]) -> list[float]:
    return [value for value, count in zip(tpot_s, num_output_tokens, strict=True) if count > 1]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def format_report(report: Report) -> str:
    """A page for people."""
    level = report.service_level
    lines = [
        f"{report.num_requests:,} requests on {report.num_replicas} replicas took {report.duration_s:,.1f} s"
        + (f"; {report.num_refused:,} could never fit and were refused" if report.num_refused else ""),
        "",
        "seconds               mean      p50      p90      p95      p99",
    ]
    for name, found in (
        ("time to first token", report.ttft_s),
        ("gap between tokens", report.itl_s),
        ("  mean per answer", report.tpot_s),
        ("whole answer", report.e2e_s),
    ):
        numbers = " ".join(f"{value:8.3f}" for value in dataclasses.astuple(found))
        lines.append(f"{name:<20}{numbers}")
    lines += [
        "",
        f"goodput        {report.goodput_share:7.1%} of the requests, {report.goodput_per_s:,.2f}/s"
        f" (first token within {level['ttft_s']:g} s, then {level['tpot_s']:g} s per token)",
        f"throughput     {report.requests_per_s:,.2f} requests/s, {report.prompt_tokens_per_s:,.0f} prompt tokens/s,"
        f" {report.output_tokens_per_s:,.0f} output tokens/s",
        f"prefix cache   {report.hit_rate:7.1%} of the prompt tokens",
        f"preemptions    {report.num_preemptions:,}; {report.num_recomputed_tokens:,} tokens recomputed"
        f" ({report.num_recomputed_tokens / max(report.num_computed_tokens, 1):.2%} of those computed)",
        f"KV occupancy   {report.occupancy_mean:7.1%} on average, {report.occupancy_max:.1%} in the fullest"
        f" {report.timeline['interval_s']:g} s",
        f"busy           {report.busy_share:7.1%} of the time, {report.num_steps:,} steps",
    ]
    return "\n".join(lines)
