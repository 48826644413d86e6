"""What a server refuses, how it says so, and how it stops."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from support.running_server import COMMAND, RunningServer, wait_until

MAX_QUEUE_TIME_S = 0.5
KEYS = {"alice": "alices-secret-key", "bob": "bobs-secret-key-2"}
LONG = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def guarded_server(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Keys, one request at a time, two in the queue, small bodies and prompts."""
    key_file = tmp_path_factory.mktemp("keys") / "keys.txt"
    key_file.write_text(f"# who may ask\nalice:{KEYS['alice']}\n")
    options = ["--model", str(tiny_model_path), "--api-key-file", str(key_file), "--max-num-seqs", "1"]
    options += ["--max-waiting-requests", "2", "--max-queue-time", str(MAX_QUEUE_TIME_S), "--max-body-mb", "0.1"]
    options += ["--max-prompt-tokens", "1000"]
    with RunningServer(*options, env={"OCTAVO_API_KEYS": f"bob:{KEYS['bob']}"}) as running:
        yield running


@pytest.fixture
def alice(guarded_server: RunningServer) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {KEYS['alice']}"}
    with httpx.Client(base_url=guarded_server.url, headers=headers, timeout=60) as client:
        yield client


@pytest.mark.parametrize("authorization", [None, "Bearer wrong-key-wrong", "Basic alices-secret-key", "Bearer", "é"])
def test_without_a_key_nothing_is_computed(guarded_server: RunningServer, authorization: str | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization.encode()}
    response = guarded_server.http.post("/v1/completions", json=LONG, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_keys_come_from_file_and_environment(guarded_server: RunningServer) -> None:
    for key in KEYS.values():
        headers = {"authorization": f"Bearer {key}"}
        assert guarded_server.http.get("/v1/models", headers=headers).status_code == 200
    for path in ("health", "ready", "version", "metrics"):
        assert guarded_server.http.get(f"/{path}").status_code == 200


def test_a_large_body_is_refused_before_it_is_read(alice: httpx.Client) -> None:
    response = alice.post("/v1/completions", content=b'{"prompt": "' + b"a" * 200_000 + b'"}')
    assert response.status_code == 413
    assert "104,857 bytes" in response.json()["error"]["message"]


def test_a_large_body_in_chunks_is_refused_too(alice: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    response = alice.post("/v1/completions", content=(b"a" * 10_000 for _ in range(30)), headers=headers)
    assert response.status_code == 413


def test_a_long_prompt_is_refused_with_the_numbers(alice: httpx.Client) -> None:
    response = alice.post("/v1/completions", json={"prompt": [9] * 1001})
    assert response.status_code == 400
    assert "1001 tokens and the server's limit is 1000; shorten the prompt by 1" in response.json()["error"]["message"]


def test_a_full_queue_is_429_and_a_long_wait_503(alice: httpx.Client, guarded_server: RunningServer) -> None:
    """With a frozen engine two requests wait; a third is refused; and all wait longer than they may."""
    with ThreadPoolExecutor(2) as threads:
        with guarded_server.frozen_engine():
            waiting = [threads.submit(alice.post, "/v1/completions", json=LONG) for _ in range(2)]
            guarded_server.wait_for_metric("octavo_requests", 2, state="waiting")
            refused = alice.post("/v1/completions", json=LONG)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) > 0
            assert "2 requests wait already" in refused.json()["error"]["message"]
            time.sleep(MAX_QUEUE_TIME_S)
        for each in waiting:
            response = each.result()
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) > 0
            assert response.json()["error"]["code"] == "queue_timeout"


def test_a_deadline_that_passes_is_said(client_of_all: httpx.Client) -> None:
    late = client_of_all.post("/v1/completions", json={**LONG, "deadline_s": 1e-6})
    assert late.status_code == 408
    assert late.json()["error"]["code"] == "deadline_exceeded"


def test_a_deadline_ends_an_answer_in_the_middle(client_of_all: httpx.Client, server: RunningServer) -> None:
    """The engine stands still from the first token until the time is up; a slow machine gets more time to the first."""
    for deadline_s in (0.5, 2.0, 8.0, 32.0):
        body = {**LONG, "deadline_s": deadline_s, "stream": True}
        began = time.monotonic()
        with client_of_all.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code == 408:
                continue
            lines = response.iter_lines()
            first = json.loads(next(lines).removeprefix("data: "))["choices"][0]
            with server.frozen_engine():
                time.sleep(max(began + deadline_s + 0.1 - time.monotonic(), 0))
            events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        break
    last = events[-1]["choices"][0]
    assert first["text"]
    assert (last["finish_reason"], last["stop_reason"]) == ("length", "timeout")


@pytest.fixture
def client_of_all(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def test_one_tenant_with_a_long_queue_does_not_starve_another(tiny_model_path: Path, tmp_path: Path) -> None:
    """Alice has 20 requests in the queue before Bob sends his one: he waits for a few of them, not for all."""
    (tmp_path / "keys").write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
    options = ("--api-key-file", str(tmp_path / "keys"), "--max-num-seqs", "1", "--log-requests")
    with RunningServer("--model", str(tiny_model_path), *options) as running, ThreadPoolExecutor(21) as threads:

        def ask(name: str) -> float:
            """When it started."""
            began = time.monotonic()
            body = {**LONG, "prompt": f"asked by {name}", "max_tokens": 50}
            headers = {"authorization": f"Bearer {KEYS[name]}"}
            answer = running.http.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200
            return began + answer.json()["usage"]["octavo"]["queue_s"]

        with running.frozen_engine():
            alices = [threads.submit(ask, "alice") for _ in range(20)]
            running.wait_for_metric("octavo_requests", 20, state="waiting")
            bobs = threads.submit(ask, "bob")
            running.wait_for_metric("octavo_requests", 21, state="waiting")
        started = bobs.result()
        assert sum(each.result() < started for each in alices) < 15
    assert any("asked by bob" in line for line in running.log)  # asked for with --log-requests


def test_silent_truncation(client_of_all: httpx.Client) -> None:
    """An over-long prompt is a 400 with the numbers, never cut."""
    for endpoint, body in (
        ("/v1/completions", {"prompt": [9] * 5000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "é" * 5000}]}),
    ):
        for stream in (False, True):
            response = client_of_all.post(endpoint, json={**body, "stream": stream})
            assert response.status_code == 400
            assert "the model's limit is 4096" in response.json()["error"]["message"]


def test_sigterm_drains(tiny_model_path: Path) -> None:
    """What runs finishes, new work is refused with 503, and the exit status is 0."""
    with RunningServer("--model", str(tiny_model_path)) as running, ThreadPoolExecutor(1) as threads:
        with running.frozen_engine() as advance:
            body = {**LONG, "max_tokens": 1500, "n": 2}
            whole = threads.submit(running.http.post, "/v1/completions", json=body)
            advance(lambda: running.metric("octavo_requests", state="running") == 2, "it runs")
            running.process.send_signal(signal.SIGTERM)
            wait_until(lambda: running.http.get("/ready").status_code == 503, 20, "it drains")
            refused = running.http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 1})
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            assert "shutting down" in refused.json()["error"]["message"]
        assert whole.result().json()["usage"]["completion_tokens"] == 2 * 1500
        assert running.process.wait(60) == 0


def test_the_time_to_drain_is_limited(tiny_model_path: Path) -> None:
    body = {**LONG, "n": 64, "stream": True}
    with RunningServer("--model", str(tiny_model_path), "--drain", "0.2") as running:
        lines: list[str] = []

        def read() -> None:
            with httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=60) as response:
                lines.extend(response.iter_lines())

        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: running.metric("octavo_requests", state="running") == 64, 20, "all run")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
        reader.join(10)
        last = [line for line in lines if line][-1]
        assert "the server was stopped before the request had finished" in last
        assert not any("[DONE]" in line for line in lines)


def test_a_taken_port_is_said_at_once(server: RunningServer) -> None:
    port = str(urlsplit(server.url).port)
    done = subprocess.run([*COMMAND, "--port", port], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"octavo: cannot listen on port {port} of 127.0.0.1: Address already in use")


def test_a_missing_model_is_said() -> None:
    done = subprocess.run(
        [*COMMAND, "--port", "0", "--model", "/nowhere.gguf"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "/nowhere.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_engine_that_cannot_be_built_is_said(tiny_model_path: Path) -> None:
    """What goes wrong in the other process reaches the person as if it were this one."""
    done = subprocess.run(
        [*COMMAND, "--port", "0", "--model", str(tiny_model_path), "--backend", "none"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("octavo: ")
    assert "Traceback" not in done.stderr


def test_a_body_that_never_comes_holds_nothing_up(server: RunningServer) -> None:
    address = urlsplit(server.url)
    assert address.hostname is not None
    half_open = [socket.create_connection((address.hostname, address.port or 0)) for _ in range(20)]
    for client in half_open:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
    began = time.monotonic()
    assert server.http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 2}).status_code == 200
    assert time.monotonic() - began < 20
    for client in half_open:
        client.close()


def test_https_with_the_operators_own_files(tiny_model_path: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    options = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    with RunningServer("--model", str(tiny_model_path), *options) as running:
        assert running.url.startswith("https://")
        trust = ssl.create_default_context(cafile=certificate)
        response = httpx.post(f"{running.url}/v1/completions", json={"prompt": "abc"}, verify=trust, timeout=60)
        assert response.status_code == 200


def test_tokeniser_blocks_the_loop(server: RunningServer) -> None:
    """While a huge prompt is tokenised (to be refused), another stream goes on: no gap is most of the time it takes."""
    huge = {"prompt": "the stop sting " * 200_000}
    gaps: list[float] = []
    with ThreadPoolExecutor(1) as threads, httpx.Client(base_url=server.url, timeout=60) as client:
        with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
            pieces = response.iter_raw()
            next(pieces)
            began = last = time.monotonic()
            refusal = threads.submit(server.http.post, "/v1/completions", json=huge)
            for _ in pieces:
                gaps.append(time.monotonic() - last)
                last += gaps[-1]
                if refusal.done():
                    break
            took = time.monotonic() - began
        assert refusal.result().status_code == 400
    assert len(gaps) > 10
    assert max(gaps) < max(took / 2, 0.1), f"a stream stood still for {max(gaps):.2f} of {took:.2f} s"
