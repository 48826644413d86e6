"""Load for a server: which request when, and what came of them all."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from octavo.cli.bench_client import Answer, BenchClient
from octavo.simulator.report import Distribution
from octavo.simulator.workload import WorkloadRequest

_WORD_LIST = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea kid body back
parent face level office door health person art war history party result change morning reason research girl guy
moment air teacher force education
"""
WORDS = _WORD_LIST.split()
"""Words that are one token each in the usual vocabularies."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request of a run.

    Attributes:
        at_s: seconds after the start.
    """

    at_s: float
    prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """What a good answer keeps: seconds to the first token, and per token after it."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What a run found.

    Attributes:
        duration_s: from the first request to the last answer.
        goodput_share: of all requests, failed ones included, those within the service level; ``goodput_per_s`` of them
            a second.
    """

    num_requests: int
    num_failed: int
    errors: dict[str, int]
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: Distribution
    itl_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution
    service_level: ServiceLevel
    goodput_share: float
    goodput_per_s: float

    def to_json(self) -> dict[str, Any]:
        """Plain values; what nothing is known of is ``None``."""
        return {name: _without_nan(value) for name, value in asdict(self).items()}


def random_requests(num_requests: int, prompt_len: int, output_len: int, seed: int) -> list[BenchRequest]:
    """Prompts of random words, all at the same time."""
    draw = random.Random(seed)
    return [BenchRequest(0.0, " ".join(draw.choices(WORDS, k=prompt_len)), output_len) for _ in range(num_requests)]


def workload_requests(workload: Sequence[WorkloadRequest], max_prompt_len: int | None) -> list[BenchRequest]:
    """A trace's or generator's requests. Equal contents become equal words, so that a prefix cache finds them.

    Args:
        max_prompt_len: longer prompts are left out; a small model could not take them.
    """
    return [
        BenchRequest(
            request.arrival_s,
            request.text if request.text is not None else _words(request),
            request.num_output_tokens,
        )
        for request in workload
        if max_prompt_len is None or request.num_prompt_tokens <= max_prompt_len
    ]


def at_rate(requests: Sequence[BenchRequest], rate: float, seed: int) -> list[BenchRequest]:
    """The same requests, arriving at random, ``rate`` a second."""
    draw, at_s, timed = random.Random(seed), 0.0, []
    for request in requests:
        timed.append(BenchRequest(at_s, request.prompt, request.max_tokens))
        at_s += draw.expovariate(rate)
    return timed


async def run_load(
    client: BenchClient,
    requests: Sequence[BenchRequest],
    *,
    chat: bool,
    concurrency: int | None,
    fields: dict[str, Any],
    on_answer: Callable[[Answer], None],
) -> list[Answer]:
    """Send every request at its time, at most ``concurrency`` at once; ``fields`` go into each body."""
    slots = asyncio.Semaphore(concurrency if concurrency is not None else len(requests) or 1)
    start_s = time.perf_counter()

    async def send(request: BenchRequest) -> Answer:
        await asyncio.sleep(max(request.at_s - (time.perf_counter() - start_s), 0))
        body: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, **fields}
        body["max_tokens"] = request.max_tokens
        async with slots:
            if chat:
                body["messages"] = [{"role": "user", "content": request.prompt}]
                answer = await client.ask("/v1/chat/completions", body)
            else:
                answer = await client.ask("/v1/completions", {**body, "prompt": request.prompt})
        on_answer(answer)
        return answer

    return list(await asyncio.gather(*(send(request) for request in requests)))


def report_of(answers: Sequence[Answer], level: ServiceLevel) -> BenchReport:
    """Sum up a run."""
    good = [answer for answer in answers if answer.error is None]
    errors: dict[str, int] = {}
    for answer in answers:
        if answer.error is not None:
            errors[answer.error] = errors.get(answer.error, 0) + 1
    ends = [answer.text_s[-1] for answer in good] or [answer.started_s for answer in answers]
    duration_s = max(max(ends) - min(answer.started_s for answer in answers), 1e-9)
    num_within = sum(answer.ttft_s <= level.ttft_s and answer.tpot_s <= level.tpot_s for answer in good)
    num_output = sum(answer.num_output_tokens for answer in good)
    return BenchReport(
        num_requests=len(answers),
        num_failed=len(answers) - len(good),
        errors=errors,
        duration_s=duration_s,
        requests_per_s=len(good) / duration_s,
        output_tokens_per_s=num_output / duration_s,
        prompt_tokens=sum(answer.num_prompt_tokens for answer in good),
        cached_tokens=sum(answer.num_cached_tokens for answer in good),
        output_tokens=num_output,
        ttft_s=Distribution.of(answer.ttft_s for answer in good),
        itl_s=Distribution.of(gap for answer in good for gap in answer.gaps_s),
        tpot_s=Distribution.of(answer.tpot_s for answer in good if answer.num_output_tokens > 1),
        e2e_s=Distribution.of(answer.e2e_s for answer in good),
        service_level=level,
        goodput_share=num_within / len(answers),
        goodput_per_s=num_within / duration_s,
    )


def table_of(report: BenchReport) -> str:
    """For people."""
    lines = [
        f"{report.num_requests} requests in {report.duration_s:.1f} s, {report.num_failed} failed",
        f"{report.requests_per_s:.2f} answers/s, {report.output_tokens_per_s:.1f} tokens/s generated",
        f"{report.prompt_tokens} prompt tokens, {report.cached_tokens} of them from the cache",
        f"within {report.service_level.ttft_s:g} s to the first token and {report.service_level.tpot_s:g} s per token: "
        f"{report.goodput_share:.1%}, {report.goodput_per_s:.2f}/s",
        "",
        f"{'seconds':24}{'mean':>10}{'p50':>10}{'p90':>10}{'p95':>10}{'p99':>10}",
    ]
    for name, distribution in (
        ("first token (TTFT)", report.ttft_s),
        ("between texts (ITL)", report.itl_s),
        ("per token (TPOT)", report.tpot_s),
        ("whole answer (E2E)", report.e2e_s),
    ):
        values = (distribution.mean, distribution.p50, distribution.p90, distribution.p95, distribution.p99)
        lines.append(f"{name:24}" + "".join(f"{value:10.4f}" for value in values))
    lines += [f"failed {count} times: {error}" for error, count in report.errors.items()]
    return "\n".join(lines)


def _words(request: WorkloadRequest) -> str:
    words: list[str] = []
    for content_id, count in request.segments:
        words += random.Random(content_id).choices(WORDS, k=count)
    return " ".join(words)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
