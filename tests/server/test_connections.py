"""Peers that say half of something, nothing, or too much; and peers that do not listen."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support import impatient_server
from support.impatient_server import MAX_CONNECTIONS, TIMEOUT_S
from support.running_server import RunningServer, wait_until

from octavo.server.connection import MAX_HEAD_BYTES

BODY = json.dumps({"prompt": "abc", "max_tokens": 2}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
JSON = {"content-type": "application/json"}
WHOLE = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def impatient(tiny_model_path: Path) -> Iterator[RunningServer]:
    command = (sys.executable, impatient_server.__file__)
    with RunningServer("--model", str(tiny_model_path), command=command) as running:
        yield running
        assert running.stop() == 0, "".join(running.log)


def connect(server: RunningServer, receive_buffer: int | None = None) -> socket.socket:
    address = urlsplit(server.url)
    client = socket.socket()
    client.settimeout(60)
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.connect((address.hostname, address.port))
    return client


def read_to_end(client: socket.socket) -> bytes:
    """All that the server says until it closes."""
    answer = b""
    with client, contextlib.suppress(ConnectionResetError):
        while piece := client.recv(1 << 20):
            answer += piece
    return answer


def answer_to(server: RunningServer, data: bytes) -> bytes:
    """What comes until the server closes, though this side never does."""
    client = connect(server)
    client.sendall(data)
    return read_to_end(client)


def read_whole_answer(client: socket.socket) -> bytes:
    """Of a request whose answer is one JSON object; the connection stays."""
    answer = b""
    while not answer.endswith(b"}"):
        piece = client.recv(1 << 16)
        assert piece, answer
        answer += piece
    return answer


def error_of(answer: bytes) -> dict[str, str]:
    return dict(json.loads(answer.partition(b"\r\n\r\n")[2])["error"])


@pytest.mark.parametrize(
    "half", [b"P", HEAD, HEAD + b"content-le", WHOLE[: -len(BODY)], WHOLE[:-1]], ids=lambda half: str(len(half))
)
def test_half_a_request_is_408_in_time(impatient: RunningServer, half: bytes) -> None:
    answer = answer_to(impatient, half)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert "did not come within 1 s" in error_of(answer)["message"]


def test_a_silent_peer_is_closed_without_a_word(impatient: RunningServer) -> None:
    assert answer_to(impatient, b"") == b""


def test_half_a_second_request_is_408_too(impatient: RunningServer) -> None:
    client = connect(impatient)
    client.sendall(WHOLE)
    assert read_whole_answer(client).startswith(b"HTTP/1.1 200 ")
    client.sendall(HEAD)
    assert read_to_end(client).startswith(b"HTTP/1.1 408 ")


def send_drops_until_closed(client: socket.socket, drop: bytes) -> None:
    """Each drop is in time; the server has to end it all the same."""
    began = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < began + 30:
            client.sendall(drop)
            time.sleep(TIMEOUT_S / 20)
    assert time.monotonic() < began + 30


def test_a_head_that_comes_in_drops_is_408(impatient: RunningServer) -> None:
    """Each drop is in time; the head is not."""
    client = connect(impatient)
    client.sendall(HEAD)
    send_drops_until_closed(client, b"x: y\r\n")


def test_a_body_that_nobody_waits_for_may_not_come_in_drops(impatient: RunningServer) -> None:
    """It is answered before its body has come, and the rest of the body holds nothing for long."""
    client = connect(impatient)
    client.sendall(b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n")
    send_drops_until_closed(client, b"x")


def test_an_endless_head_is_431(impatient: RunningServer) -> None:
    answer = answer_to(impatient, HEAD + b"x: " + b"y" * (MAX_HEAD_BYTES - len(HEAD) - 2))  # one byte too many
    assert answer.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "nonsense",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        HEAD + b"content-length: -1\r\n\r\n",
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["words", "TLS", "negative length", "two lengths"],
)
def test_what_is_no_http_is_400(impatient: RunningServer, nonsense: bytes) -> None:
    answer = answer_to(impatient, nonsense)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert error_of(answer)["type"] == "invalid_request_error"


def test_requests_sent_ahead_are_answered_in_order_up_to_a_limit(impatient: RunningServer) -> None:
    client = connect(impatient)
    ask = b"GET /v1/models/%d HTTP/1.1\r\nhost: x\r\n\r\n"
    client.sendall(b"".join(ask % number for number in range(5)))
    answer = b""
    while answer.count(b"HTTP/1.1 404") < 5 or not answer.endswith(b"}"):
        answer += client.recv(1 << 16)
    places = [answer.index(b"there is no model '%d'" % number) for number in range(5)]
    assert places == sorted(places)
    client.close()
    assert b"HTTP/1.1 400 " in answer_to(impatient, WHOLE + WHOLE * 20)


def test_a_peer_that_goes_is_missed_though_it_has_asked_ahead(impatient: RunningServer) -> None:
    aborts = impatient.metric("octavo_requests_finished_total", reason="abort")
    body = json.dumps({"prompt": "abc", "max_tokens": 4000, "n": 60, "ignore_eos": True}).encode()
    client = connect(impatient)
    client.sendall((HEAD + b"content-length: %d\r\n\r\n" % len(body) + body) * 2)
    wait_until(lambda: impatient.metric("octavo_requests", state="running") > 0, 30, "it runs")
    client.close()
    impatient.wait_for_metric("octavo_requests_finished_total", aborts + 1, reason="abort")
    impatient.wait_for_metric("octavo_requests", 0, state="running")


def test_silent_peers_make_room_for_those_who_ask(impatient: RunningServer) -> None:
    silent = [connect(impatient) for _ in range(3 * MAX_CONNECTIONS)]
    half = [connect(impatient) for _ in range(3 * MAX_CONNECTIONS)]
    for client in half:
        with contextlib.suppress(ConnectionError):
            client.sendall(HEAD)
    for _ in range(10):
        assert impatient.http.post("/v1/completions", content=BODY, headers=JSON).status_code == 200
    for client in silent + half:
        client.close()


def test_when_all_connections_have_work_one_more_is_503(impatient: RunningServer) -> None:
    fields = {"prompt": "abc", "max_tokens": 4000, "n": 3, "ignore_eos": True, "stream": True}
    body = json.dumps(fields).encode()
    busy = [connect(impatient) for _ in range(MAX_CONNECTIONS)]
    for client in busy:
        client.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
    for client in busy:  # each has its first token, so each has a request under way
        assert client.recv(1 << 10).startswith(b"HTTP/1.1 200 ")
    answer = answer_to(impatient, b"")
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in answer
    for client in busy:
        client.close()
    wait_until(lambda: answer_to(impatient, b"") == b"", 30, "there is room again")


def is_open(server: RunningServer, client: socket.socket) -> bool:
    """Whether the server's process has its end of the connection; what only the kernel has belongs to no file."""
    ends = f":{urlsplit(server.url).port:04X} 0100007F:{client.getsockname()[1]:04X} "
    lines = [line for line in Path("/proc/net/tcp").read_text().splitlines() if ends in line]
    return any(line.split()[9] != "0" for line in lines)


def test_a_reader_that_takes_nothing_is_dropped(impatient: RunningServer) -> None:
    """A long prompt, echoed 400 times: more than the sockets hold. The answer breaks off; nothing of it stays."""
    fields = {"prompt": ["the stop" * 1800] * 4, "n": 100, "max_tokens": 1, "echo": True, "stream": True}
    body = json.dumps(fields).encode()
    client = connect(impatient, receive_buffer=4096)
    client.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
    assert client.recv(100).startswith(b"HTTP/1.1 200 ")
    assert is_open(impatient, client)
    wait_until(lambda: not is_open(impatient, client), 30, "its connection is closed")
    assert b"[DONE]" not in read_to_end(client)
    impatient.wait_for_metric("octavo_requests", 0, state="running")
    impatient.wait_for_metric("octavo_kv_cache_blocks", 0, state="held")
    assert not any("ERROR" in line for line in impatient.log), "".join(impatient.log)
