"""What HTTP costs: the same work through the server and offline, in turns, in one run.

    python benchmarks/server_throughput.py --json

Prints the ratio of throughputs at 32 streams (the server streams every token; the client runs on the same machine), and
the time to the first token of a prompt that begins with 2,000 tokens, when they are cached and when they are not.
Rounds alternate, and the best of each side counts: other work on the machine slows either side now and then. Processor
time per token is less disturbed by it: that of the engine's process, and that of the server's on top.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.running_server import RunningServer

from octavo.cli.bench_client import Answer, BenchClient
from octavo.cli.bench_run import WORDS, BenchRequest, random_requests, run_load

OFFLINE = """
import json, sys, time
from octavo import LLM, SamplingParams
work = json.load(sys.stdin)
llm = LLM(work["model"])
params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=work["output_len"])
llm.generate("warm up", SamplingParams(max_tokens=4))
began = time.perf_counter()
outputs = llm.generate(work["prompts"], params, use_progress=False)
took = time.perf_counter() - began
print(sum(len(output.outputs[0].token_ids) for output in outputs) / took)
"""


def offline_tokens_per_s(model: str, requests: list[BenchRequest]) -> float:
    work = {"model": model, "prompts": [request.prompt for request in requests], "output_len": requests[0].max_tokens}
    command = [sys.executable, "-c", OFFLINE]
    return float(subprocess.run(command, input=json.dumps(work), capture_output=True, text=True, check=True).stdout)


def http_answers(server: RunningServer, requests: list[BenchRequest], salt: str) -> list[Answer]:
    """Streams, all at once, with a cache of their own."""
    fields = {"temperature": 0, "ignore_eos": True, "cache_salt": salt}
    load = run_load(
        BenchClient(server.url), requests, chat=False, concurrency=None, fields=fields, on_answer=lambda answer: None
    )
    answers = asyncio.run(load)
    assert all(answer.error is None for answer in answers), [answer.error for answer in answers]
    return answers


def http_tokens_per_s(answers: list[Answer]) -> float:
    took = max(answer.ended_s for answer in answers) - min(answer.started_s for answer in answers)
    return sum(answer.num_output_tokens for answer in answers) / took


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def first_token_s(server: RunningServer, prefix_len: int, num_rounds: int) -> tuple[float, float]:
    """Best times to the first token: of a fresh prefix, and of the same one with another end."""
    fresh, cached = [], []
    for number in range(num_rounds):
        (request,) = random_requests(1, prefix_len, 1, seed=1000 + number)
        again = replace(request, prompt=f"{request.prompt} {WORDS[number]} {WORDS[-number - 1]}")
        salt = f"prefix {number}"
        fresh.append(http_answers(server, [request], salt)[0].ttft_s)
        cached.append(http_answers(server, [again], salt)[0].ttft_s)
    return min(fresh), min(cached)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--prefix-len", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    offline, http, num_tokens = [], [], 0
    began = time.time()
    with RunningServer("--model", arguments.model) as server:
        http_answers(server, random_requests(1, 5, 4, seed=99), "warm up")
        pids = (server.process.pid, server.engine_pid() or 0)
        cpu_before_s = [cpu_s(pid) for pid in pids]
        for number in range(arguments.rounds):
            requests = random_requests(arguments.streams, arguments.prompt_len, arguments.output_len, seed=number)
            answers = http_answers(server, requests, f"round {number}")
            http.append(http_tokens_per_s(answers))
            num_tokens += sum(answer.num_output_tokens for answer in answers)
            offline.append(offline_tokens_per_s(arguments.model, requests))
        used_s = [cpu_s(pid) - before_s for pid, before_s in zip(pids, cpu_before_s, strict=True)]
        fresh_s, cached_s = first_token_s(server, arguments.prefix_len, arguments.rounds)
    found = {
        "streams": arguments.streams,
        "http_tokens_per_s": round(max(http), 1),
        "offline_tokens_per_s": round(max(offline), 1),
        "http_share": round(max(http) / max(offline), 3),
        "server_cpu_us_per_token": round(used_s[0] / num_tokens * 1e6, 1),
        "engine_cpu_us_per_token": round(used_s[1] / num_tokens * 1e6, 1),
        "prefix_tokens": arguments.prefix_len,
        "ttft_uncached_s": round(fresh_s, 4),
        "ttft_cached_s": round(cached_s, 4),
        "ttft_share": round(cached_s / fresh_s, 4),
        "took_s": round(time.time() - began, 1),
    }
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:22} {value}")


if __name__ == "__main__":
    main()
