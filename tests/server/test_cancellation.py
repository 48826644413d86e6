"""Clients that go away, wherever their request stands."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from support.running_server import RunningServer, wait_until

LONG = {"temperature": 0, "ignore_eos": True, "max_tokens": 3500}


@pytest.fixture(scope="module")
def narrow_server(tiny_model_path: Path) -> Iterator[RunningServer]:
    """Two requests run at once, and a step takes 32 tokens: so there is a queue, and prompts come in many chunks."""
    options = ("--max-num-seqs", "2", "--max-num-batched-tokens", "32", "--num-blocks", "600")
    with RunningServer("--model", str(tiny_model_path), *options) as running:
        yield running


@pytest.fixture(autouse=True)
def _the_pool_drains(narrow_server: RunningServer) -> Iterator[None]:
    yield
    narrow_server.wait_for_metric("octavo_kv_cache_blocks", 0, state="held")
    narrow_server.wait_for_metric("octavo_requests", 0, state="running")
    narrow_server.wait_for_metric("octavo_requests", 0, state="waiting")


def send(server: RunningServer, body: dict[str, object]) -> socket.socket:
    """A request whose answer nobody reads yet."""
    address = urlsplit(server.url)
    assert address.hostname is not None
    client = socket.create_connection((address.hostname, address.port or 0))
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    client.sendall(head.encode() + b"\r\n\r\n" + data)
    return client


def abort_count(server: RunningServer) -> float:
    return server.metric("octavo_requests_finished_total", reason="abort")


def steps(server: RunningServer) -> float:
    return server.metric("octavo_engine_steps_total")


def samples(server: RunningServer, state: str) -> float:
    return server.metric("octavo_requests", state=state)


def close_and_expect_two_steps_at_most(server: RunningServer, client: socket.socket) -> None:
    """The client of the only request leaves a frozen engine; when that goes on, its blocks are free at once."""
    aborts = abort_count(server)
    with server.frozen_engine():
        client.close()
        wait_until(lambda: abort_count(server) == aborts + 1, 30, "it is aborted")
        at_abort = steps(server)
    server.wait_for_metric("octavo_kv_cache_blocks", 0, state="held")
    assert steps(server) <= at_abort + 2


@pytest.mark.parametrize("stream", [False, True])
def test_cancel_lost_between_states_while_decoding(narrow_server: RunningServer, stream: bool) -> None:
    at_start = steps(narrow_server)
    with narrow_server.frozen_engine() as advance:
        client = send(narrow_server, {**LONG, "prompt": [9] * 20, "stream": stream})
        advance(lambda: steps(narrow_server) > at_start + 5, "it decodes")
        assert samples(narrow_server, "running") == 1
        close_and_expect_two_steps_at_most(narrow_server, client)


@pytest.mark.parametrize("stream", [False, True])
def test_cancel_lost_between_states_while_in_prefill(narrow_server: RunningServer, stream: bool) -> None:
    """A prompt of 4,000 tokens takes 125 steps."""
    at_start = steps(narrow_server)
    body = {"max_tokens": 90, "prompt": [9, 8] * 2000, "stream": stream, "cache_salt": f"fresh {time.monotonic()}"}
    with narrow_server.frozen_engine() as advance:
        client = send(narrow_server, body)
        advance(lambda: steps(narrow_server) > at_start + 1, "it has started")
        assert steps(narrow_server) < at_start + 125
        close_and_expect_two_steps_at_most(narrow_server, client)


@pytest.mark.parametrize("stream", [False, True])
def test_cancel_lost_between_states_while_queued(narrow_server: RunningServer, stream: bool) -> None:
    aborts = abort_count(narrow_server)
    with narrow_server.frozen_engine() as advance:
        running = [send(narrow_server, {**LONG, "prompt": [9] * 20}) for _ in range(2)]
        advance(lambda: samples(narrow_server, "running") == 2, "both run")
        queued = send(narrow_server, {**LONG, "prompt": [7] * 20, "stream": stream})
        wait_until(lambda: samples(narrow_server, "waiting") == 1, 30, "the third waits")
        queued.close()
        wait_until(lambda: samples(narrow_server, "waiting") == 0, 30, "it is gone")
        assert abort_count(narrow_server) == aborts + 1
        assert samples(narrow_server, "running") == 2
        for client in running:
            client.close()
        wait_until(lambda: abort_count(narrow_server) == aborts + 3, 30, "all are aborted")


def test_cancel_with_the_wrong_scope(narrow_server: RunningServer) -> None:
    """Requests are cancelled in the queue, a thousand times, beside one that decodes: it is unchanged."""
    body = {**LONG, "prompt": [11] * 30, "max_tokens": 1000}
    alone = narrow_server.http.post("/v1/completions", json=body).json()["choices"]
    with narrow_server.frozen_engine() as advance:
        blocker = send(narrow_server, {**LONG, "prompt": [9] * 20})
        watched = send(narrow_server, body)
        advance(lambda: samples(narrow_server, "running") == 2, "both run")
        for index in range(1000):
            send(narrow_server, {**LONG, "prompt": [index % 100] * 20, "stream": bool(index % 2)}).close()
            if index % 100 == 0:
                advance(lambda: True, "some steps are done")
    answer = b""
    while not answer.endswith(b"}"):
        piece = watched.recv(1 << 16)
        assert piece, answer
        answer += piece
    blocker.close()
    watched.close()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"] == alone


def test_a_slow_reader_gets_everything_and_holds_up_nobody(narrow_server: RunningServer) -> None:
    body = {**LONG, "prompt": [13] * 30, "max_tokens": 2000, "logprobs": 20, "stream": True}
    slow = send(narrow_server, body)
    with httpx.Client(base_url=narrow_server.url, timeout=60) as client:
        quick = client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 50})
        assert quick.status_code == 200
    narrow_server.wait_for_metric("octavo_requests", 0, 60, state="running")  # though nobody has read anything
    answer = b""
    while not answer.endswith(b"0\r\n\r\n"):
        piece = slow.recv(1 << 20)
        assert piece, answer[-200:]
        answer += piece
    slow.close()
    assert b"data: [DONE]" in answer
    assert answer.count(b'"text_offset":') >= 1
