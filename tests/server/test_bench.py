"""``octavo bench serve``: what it sends, what it reads, what it reports."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.running_server import RunningServer

from octavo.cli.bench_client import Answer, BenchClient
from octavo.cli.bench_run import BenchRequest, ServiceLevel, at_rate, random_requests, report_of, workload_requests
from octavo.errors import ConfigError
from octavo.simulator.workload import WorkloadRequest

LEVEL = ServiceLevel(ttft_s=1.0, tpot_s=0.1)


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo", "bench", "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_run_counts_what_the_server_counts(server: RunningServer) -> None:
    done = bench("--url", server.url, "--num-requests", "12", "--prompt-len", "9", "--output-len", "20", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["num_requests"], report["num_failed"], report["errors"]) == (12, 0, {})
    assert 0 < report["output_tokens"] <= 12 * 20
    assert report["prompt_tokens"] > 12 * 9
    assert 0 < report["ttft_s"]["p50"] <= report["ttft_s"]["p99"] <= report["e2e_s"]["p99"] <= report["duration_s"]


def test_chat_at_a_rate_with_a_table_for_people(server: RunningServer) -> None:
    options = ["--chat", "--num-requests", "5", "--prompt-len", "3", "--output-len", "4", "--request-rate", "50"]
    done = bench("--url", f"{server.url}/v1", *options, "--concurrency", "2", "--ignore-eos")
    assert done.returncode == 0, done.stderr
    assert "5 requests in" in done.stdout
    assert "first token (TTFT)" in done.stdout


def test_a_server_that_is_not_there_is_said() -> None:
    done = bench("--url", "http://127.0.0.1:9", "--num-requests", "3")
    assert done.returncode == 1
    assert "failed 3 times: no connection" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--num-requests", "--request-rate", "--concurrency", "--output-len"])
def test_nothing_of_something_is_refused(option: str) -> None:
    done = bench(option, "0")
    assert done.returncode == 2
    assert f"{option} must be above 0" in done.stderr


def answers_of(raw: list[bytes]) -> Answer:
    """What the client makes of a server that sends these pieces."""

    async def run() -> Answer:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            for piece in raw:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.02)
            writer.close()

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with listener:
            return await BenchClient(f"http://127.0.0.1:{port}").ask("/v1/completions", {})

    return asyncio.run(run())


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = '{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}'


def chunk(text: str) -> bytes:
    data = text.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_events_have_the_time_of_the_piece_that_ends_them() -> None:
    first = chunk('data: {"choices":[{"text":"é"}]}\n\n')
    second = chunk('data: {"choices":[{"text":"b"}]}\n\ndata: ' + USAGE + "\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"
    answer = answers_of([HEAD + first[:20], first[20:] + second[:10], second[10:]])
    assert answer.error is None
    assert answer.text == "éb"
    assert (answer.num_prompt_tokens, answer.num_output_tokens, answer.num_cached_tokens) == (3, 2, 1)
    assert answer.ttft_s >= 0.02
    assert answer.gaps_s[0] >= 0.01
    assert answer.e2e_s == pytest.approx(answer.ttft_s + answer.gaps_s[0])


@pytest.mark.parametrize(
    "raw, error",
    [
        ([b""], "the connection closed before an answer came"),
        ([b"HTTP/1.1 429 Busy\r\ncontent-length: 4\r\n\r\nlate"], "status 429: late"),
        ([HEAD + chunk('data: {"choices":[{"text":"a"}]}\n\n')], "the stream broke off"),
        ([HEAD + chunk('data: {"error":{"message":"gone"}}\n\n')], "in the stream: {'message': 'gone'}"),
        ([HEAD + chunk("data: nonsense\n\n")], "the answer is not as OpenAI's servers give it"),
    ],
)
def test_what_goes_wrong_is_in_the_answer(raw: list[bytes], error: str) -> None:
    found = answers_of(raw).error
    assert found is not None
    assert found.startswith(error)


def test_a_report_counts_failures_against_the_goodput() -> None:
    quick = Answer(started_s=0.0, text_s=[0.5, 0.6], num_output_tokens=3, num_prompt_tokens=5)
    slow = Answer(started_s=0.0, text_s=[2.0, 2.1], num_output_tokens=3, num_prompt_tokens=5)
    report = report_of([quick, slow, Answer(error="gone"), Answer(error="gone")], LEVEL)
    assert (report.num_failed, report.errors) == (2, {"gone": 2})
    assert report.goodput_share == 0.25
    assert report.duration_s == 2.1
    assert report.ttft_s.p50 == 0.5
    assert quick.tpot_s == pytest.approx(0.05)


def test_equal_contents_of_a_trace_become_equal_words() -> None:
    one = WorkloadRequest("a", 0.0, [(1, 10), (2, 5)], 7, -1)
    other = WorkloadRequest("b", 3.0, [(1, 10), (3, 5)], 8, -2)
    long = WorkloadRequest("c", 4.0, [(1, 1000)], 8, -3)
    first, second = workload_requests([one, other, long], max_prompt_len=100)
    assert first.prompt.split()[:10] == second.prompt.split()[:10]
    assert first.prompt.split()[10:] != second.prompt.split()[10:]
    assert (second.at_s, second.max_tokens) == (3.0, 8)


def test_rates_and_prompts_are_seeded() -> None:
    requests = random_requests(200, 5, 10, seed=1)
    assert requests == random_requests(200, 5, 10, seed=1) != random_requests(200, 5, 10, seed=2)
    timed = at_rate(requests, 10.0, seed=1)
    assert timed[0] == BenchRequest(0.0, requests[0].prompt, 10)
    assert timed[-1].at_s == pytest.approx(20, rel=0.3)


@pytest.mark.parametrize("url", ["ftp://x", "http://", ""])
def test_urls_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        BenchClient(url)


def test_a_plot_is_drawn_or_what_it_needs_is_said(server: RunningServer, tmp_path: Path) -> None:
    picture = tmp_path / "run.png"
    options = ["--num-requests", "3", "--prompt-len", "3", "--output-len", "4", "--plot", str(picture)]
    done = bench("--url", server.url, *options)
    if done.returncode == 0:
        assert picture.read_bytes().startswith(b"\x89PNG")
    else:
        assert "pip install 'octavo[plot]'" in done.stderr
