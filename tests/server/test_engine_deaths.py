"""The engine's process dies; no stream notices."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from support import poisonable_server, poisoned_engine
from support.running_server import RunningServer, wait_until

NUM_STREAMS = 8
NUM_KILLS = 3
Answer = tuple[str, str | None, list[float]]


@pytest.fixture(scope="module")
def fragile_server(tiny_model_path: Path) -> Iterator[RunningServer]:
    options = ("--model", str(tiny_model_path), "--served-model-name", "tiny", "--stall", "1")
    with RunningServer(*options) as running:
        yield running
        assert running.stop() == 0, "".join(running.log)


class Progress:
    """How many tokens have reached the clients; deaths are timed by it, for no machine is too fast then."""

    def __init__(self) -> None:
        self.num_tokens = 0

    async def more(self, num_tokens: int) -> None:
        """Return once so many more have come."""
        goal = self.num_tokens + num_tokens
        while self.num_tokens < goal:
            await asyncio.sleep(0.001)


async def one_stream(client: openai.AsyncOpenAI, index: int, progress: Progress) -> Answer:
    """Half of them greedy, half drawn with penalties; text, end, and log probabilities."""
    stream = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "the stop sting " * (index % 5 + 1)}],
        max_tokens=800 + 40 * index,
        temperature=1.1 if index % 2 else 0,
        seed=index,
        frequency_penalty=0.5 if index % 2 else 0,
        logprobs=True,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    text, finish_reason, logprobs = "", None, []
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish_reason = choice.finish_reason or finish_reason
            entries = (choice.logprobs and choice.logprobs.content) or []
            logprobs += [entry.logprob for entry in entries]
            progress.num_tokens += len(entries)
    return text, finish_reason, logprobs


async def all_streams(server: RunningServer, num_kills: int = 0) -> list[Answer]:
    progress = Progress()
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        streams = asyncio.gather(*(one_stream(client, index, progress) for index in range(NUM_STREAMS)))
        for _ in range(num_kills):
            await asyncio.wait_for(progress.more(random.randint(1, 200)), 60)
            await asyncio.to_thread(server.kill_engine)
        return await streams


def test_killed_engines_change_no_stream(fragile_server: RunningServer) -> None:
    undisturbed = asyncio.run(all_streams(fragile_server))
    restarts = fragile_server.metric("octavo_engine_restarts_total")
    assert asyncio.run(all_streams(fragile_server, NUM_KILLS)) == undisturbed
    fragile_server.wait_for_metric("octavo_engine_restarts_total", restarts + NUM_KILLS)
    fragile_server.wait_for_metric("octavo_kv_cache_blocks", 0, state="held")


def test_a_request_that_waits_for_its_whole_answer_gets_it(fragile_server: RunningServer) -> None:
    body = {"prompt": [9] * 30, "max_tokens": 3000, "ignore_eos": True, "temperature": 0, "n": 2}

    def has_begun(num_computed: float) -> bool:
        return fragile_server.metric("octavo_computed_tokens_total") > num_computed

    async def ask(kill: bool) -> dict[str, object]:
        num_computed = fragile_server.metric("octavo_computed_tokens_total")
        async with httpx.AsyncClient(base_url=fragile_server.url, timeout=120) as client:
            answer = asyncio.ensure_future(client.post("/v1/completions", json=body))
            if kill:
                await asyncio.to_thread(wait_until, lambda: has_begun(num_computed), 30, "it is under way")
                await asyncio.to_thread(fragile_server.kill_engine)
            response = await answer
            assert response.status_code == 200, response.text
            return dict(response.json())

    undisturbed, disturbed = asyncio.run(ask(False)), asyncio.run(ask(True))
    assert disturbed["choices"] == undisturbed["choices"]
    assert disturbed["usage"]["octavo"]["num_engine_restarts"] == 1  # type: ignore[index]


def test_health_that_lies(fragile_server: RunningServer) -> None:
    """A frozen engine: not ready while work waits, ready again when it moves, and the work is done."""
    pid = fragile_server.engine_pid()
    assert pid is not None
    with httpx.Client(base_url=fragile_server.url, timeout=60) as client:
        assert client.get("/ready").status_code == 200
        os.kill(pid, signal.SIGSTOP)
        body = {"prompt": "abc", "max_tokens": 5, "ignore_eos": True}
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(httpx.post, f"{fragile_server.url}/v1/completions", json=body, timeout=60)
            try:
                wait_until(lambda: client.get("/ready").status_code == 503, 20, "the server is not ready")
                refusal = client.get("/ready")
                assert "no step has finished" in refusal.json()["error"]["message"]
                assert int(refusal.headers["retry-after"]) > 0
                assert client.get("/health").status_code == 200
            finally:
                os.kill(pid, signal.SIGCONT)
            assert waiting.result().json()["usage"]["completion_tokens"] == 5
        wait_until(lambda: client.get("/ready").status_code == 200, 20, "the server is ready again")


def test_a_request_that_kills_the_engine_is_given_up_and_the_others_go_on(tiny_model_path: Path) -> None:
    """Three deaths with nobody else to blame; then a 500 that says so."""
    command = (sys.executable, poisonable_server.__file__)
    body = {"max_tokens": 300, "temperature": 0, "ignore_eos": True}

    async def ask(client: httpx.AsyncClient, prompt: list[int]) -> httpx.Response:
        return await client.post("/v1/completions", json={**body, "prompt": prompt})

    async def all_together(url: str) -> tuple[list[httpx.Response], list[httpx.Response], httpx.Response]:
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            innocent = [[7 + index] * 20 for index in range(6)]
            before = await asyncio.gather(*(ask(client, prompt) for prompt in innocent))
            poison = [9] * 10 + [poisoned_engine.POISON]
            *others, guilty = await asyncio.gather(*(ask(client, prompt) for prompt in [*innocent, poison]))
            return before, others, guilty

    with RunningServer("--model", str(tiny_model_path), command=command) as running:
        before, others, guilty = asyncio.run(all_together(running.url))
        assert guilty.status_code == 500
        error = guilty.json()["error"]
        assert "died 3 times while it computed this request" in error["message"]
        assert "SIGSEGV" in error["message"]
        assert (error["type"], error["code"]) == ("server_error", "engine_failed")
        assert [each.json()["choices"] for each in others] == [each.json()["choices"] for each in before]
        assert 3 <= running.metric("octavo_engine_restarts_total") <= 6
        assert running.metric("octavo_requests_finished_total", reason="error") == 1


def test_a_new_engine_is_there_soon(fragile_server: RunningServer) -> None:
    """Without any work, too: nobody has to ask first."""
    pid = fragile_server.engine_pid()
    began = time.monotonic()
    fragile_server.kill_engine()
    wait_until(lambda: fragile_server.engine_pid() not in (None, pid), 20, "there is another engine")
    with httpx.Client(base_url=fragile_server.url, timeout=60) as client:
        wait_until(lambda: client.get("/ready").status_code == 200, 20, "it is ready")
    assert time.monotonic() - began < 20


def test_an_engine_does_not_outlive_its_server(tiny_model_path: Path) -> None:
    with RunningServer("--model", str(tiny_model_path)) as running:
        pid = running.engine_pid()
        assert pid is not None
        running.process.kill()
        wait_until(lambda: not is_running(pid), 20, "the engine has ended")


def is_running(pid: int) -> bool:
    """Ended processes that nobody waits for do not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
