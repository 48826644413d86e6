"""``octavo bench serve``: load for a server, and what it makes of it."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli import options
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.cli.bench_client import Answer
    from octavo.cli.bench_run import BenchRequest

_EXAMPLES = """\
Prompts are English words, one token each in the usual vocabularies, so every OpenAI-compatible server can be measured;
tokens are counted as the server counts them. A trace's equal contents become equal words: a prefix cache finds them.

datasets:
  random                                   --prompt-len words, --output-len tokens
  ShareGPT JSON, Mooncake or coding-agent JSON lines, Azure or BurstGPT CSV (also gzipped), by path
  poisson, bursts, shared_prompts, chat, agents: generators, such as chat:users=20,duration_s=60

examples:
  octavo bench serve --num-requests 100 --concurrency 32 --ignore-eos
  octavo bench serve --url https://api.example.org --chat --model m --request-rate 2
  octavo bench serve --dataset conversation_trace.jsonl.gz --num-requests 200 --request-rate 5 --json --plot run.png"""


def add_parser(commands: options.Subparsers) -> None:
    """Add ``octavo bench``, whose only kind is ``serve``."""
    bench = options.add_command(commands, "bench", "measure a server", "octavo bench serve --help says more")
    kinds = bench.add_subparsers(title="kinds", metavar="KIND", required=True)
    parser = options.add_command(kinds, "serve", "send load to an OpenAI-compatible server", _EXAMPLES)
    parser.add_argument(
        "--url", default="http://localhost:8000", metavar="URL", help="the server (default: http://localhost:8000)"
    )
    parser.add_argument("--model", metavar="M", help="the model's name there (default: none is sent)")
    parser.add_argument("--chat", action="store_true", help="ask /v1/chat/completions (default: /v1/completions)")
    parser.add_argument("--dataset", default="random", metavar="D", help="what to ask; see below (default: random)")
    parser.add_argument("--num-requests", type=int, default=100, metavar="N", help="at most so many (default: 100)")
    parser.add_argument(
        "--prompt-len", type=int, default=128, metavar="N", help="words of a random prompt (default: 128)"
    )
    parser.add_argument(
        "--output-len", type=int, metavar="N", help="tokens of an answer (default: 128, or the dataset's own)"
    )
    parser.add_argument("--max-prompt-len", type=int, metavar="N", help="leave longer prompts of a dataset out")
    parser.add_argument(
        "--request-rate", type=float, metavar="R", help="requests a second, at random (default: the dataset's times)"
    )
    parser.add_argument("--concurrency", type=int, metavar="C", help="requests at once, at most (default: no limit)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="of every request (default: 0)")
    parser.add_argument(
        "--ignore-eos", action="store_true", help="answers have exactly --output-len tokens, where the server knows how"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of prompts and times (default: 0)")
    parser.add_argument(
        "--slo-ttft", type=float, default=1.0, metavar="S", help="seconds to the first token (default: 1)"
    )
    parser.add_argument("--slo-tpot", type=float, default=0.1, metavar="S", help="seconds per token (default: 0.1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the run")
    parser.set_defaults(command=serve)


def serve(arguments: argparse.Namespace) -> int:
    """Measure; 1 if every request failed."""
    import asyncio

    from octavo.cli.bench_client import BenchClient
    from octavo.cli.bench_run import ServiceLevel, report_of, run_load, table_of

    for name in ("num_requests", "prompt_len", "output_len", "max_prompt_len", "request_rate", "concurrency"):
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be above 0, not {value}")
    client = BenchClient(arguments.url, os.environ.get("OPENAI_API_KEY"))
    requests = _requests(arguments)
    fields: dict[str, Any] = {"temperature": arguments.temperature}
    if arguments.model is not None:
        fields["model"] = arguments.model
    if arguments.ignore_eos:
        fields["ignore_eos"] = True
    with _Progress(len(requests)) as progress:
        answers = asyncio.run(
            run_load(
                client,
                requests,
                chat=arguments.chat,
                concurrency=arguments.concurrency,
                fields=fields,
                on_answer=progress.advance,
            )
        )
    report = report_of(answers, ServiceLevel(arguments.slo_ttft, arguments.slo_tpot))
    print(json.dumps(report.to_json()) if arguments.json else table_of(report))
    if arguments.plot is not None:
        from octavo.cli.bench_plot import draw_run

        draw_run(report, answers, f"{arguments.dataset} on {arguments.url}", arguments.plot)
    return 1 if report.num_failed == report.num_requests else 0


def _requests(arguments: argparse.Namespace) -> list[BenchRequest]:
    from dataclasses import replace

    from octavo.cli.bench_run import at_rate, random_requests, workload_requests
    from octavo.simulator.workload_source import open_workload

    if arguments.dataset == "random":
        output_len = arguments.output_len or 128
        requests = random_requests(arguments.num_requests, arguments.prompt_len, output_len, arguments.seed)
    else:
        workload = itertools.islice(open_workload(arguments.dataset), 50 * arguments.num_requests)
        requests = workload_requests(list(workload), arguments.max_prompt_len)[: arguments.num_requests]
        if arguments.output_len is not None:
            requests = [replace(request, max_tokens=arguments.output_len) for request in requests]
    if not requests:
        raise ConfigError(f"{arguments.dataset} has no request that fits --max-prompt-len")
    if arguments.request_rate is not None:
        requests = at_rate(requests, arguments.request_rate, arguments.seed)
    return requests


class _Progress:
    """A bar on standard error, on a terminal only."""

    def __init__(self, num_requests: int) -> None:
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True))
            self._task = self._bar.add_task("requests", total=num_requests)

    def __enter__(self) -> _Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, answer: Answer) -> None:
        """One more has its answer."""
        if self._bar is not None:
            self._bar.advance(self._task)
