"""Faults of the machine below the server: full disks, jumping clocks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
from support.running_server import COMMAND, RunningServer, wait_until

ASK = {"prompt": "the stop", "max_tokens": 30, "temperature": 1.2, "seed": 4, "ignore_eos": True}

JUMPING_CLOCK = """
import itertools, time

real_time, calls = time.time, itertools.count()


def jumping_time():
    return real_time() + (next(calls) % 5 - 2) * 400 * 24 * 3600


time.time = jumping_time
time.time_ns = lambda: int(jumping_time() * 1e9)
"""
"""Each look at the wall clock is years away from the one before, forth or back."""

PIP_ON_A_FULL_DISK = """
import os, sys

with open(os.path.join(os.environ["TMPDIR"], "wheel"), "wb") as wheel:
    try:
        wheel.write(bytes(2_000_000))
    except OSError as error:
        sys.exit(f"ERROR: Could not install packages due to an OSError: {error}")
"""


def limited(limit: str) -> tuple[str, ...]:
    """The server as a process that can write no byte, or no more than some blocks, into any file."""
    return ("sh", "-c", f'ulimit -f {limit}; exec "$@"', "sh", *COMMAND)


def test_a_full_disk_is_said_when_the_model_is_fetched(tmp_path: Path) -> None:
    """One line, exit status 1, and no half of a file."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "pip.py").write_text(PIP_ON_A_FULL_DISK)
    paths = [str(tmp_path / "modules"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "OCTAVO_HOME": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(paths)}
    command = [*limited("100"), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "the room on the disk" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_full_disk_stops_no_server(server: RunningServer, tiny_model_path: Path) -> None:
    """It writes no files."""
    expected = server.http.post("/v1/completions", json=ASK).json()["choices"]
    with RunningServer("--model", str(tiny_model_path), command=limited("0")) as running:
        assert running.http.post("/v1/completions", json=ASK).json()["choices"] == expected
        assert running.stop() == 0


def test_a_log_that_cannot_be_written_stops_no_server(tiny_model_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        try:
            return httpx.get(f"{url}/ready", timeout=60).status_code == 200
        except httpx.ConnectError:
            return False

    with Path("/dev/full").open("w") as full:
        options = ["--model", str(tiny_model_path), "--port", str(port), "--log-requests"]
        process = subprocess.Popen([*COMMAND, *options], stdin=subprocess.DEVNULL, stdout=full, stderr=full)
    try:
        wait_until(lambda: process.poll() is not None or is_ready(), 60, "it answers")
        assert httpx.post(f"{url}/v1/completions", json=ASK, timeout=60).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_jumps_of_the_wall_clock_change_nothing(server: RunningServer, tiny_model_path: Path, tmp_path: Path) -> None:
    """Neither in the server nor in the engine: limits hold, times are told right, and answers are the same."""
    (tmp_path / "sitecustomize.py").write_text(JUMPING_CLOCK)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    options = ("--model", str(tiny_model_path), "--max-queue-time", "1000", "--stall", "1000", "--drain", "1000")
    body = {**ASK, "deadline_s": 1000}
    expected = server.http.post("/v1/completions", json=ASK).json()["choices"]
    with RunningServer(*options, env={"PYTHONPATH": os.pathsep.join(paths)}) as running:
        began = time.monotonic()
        created = []
        for _ in range(5):
            answer = running.http.post("/v1/completions", json=body).json()
            assert answer["choices"] == expected
            created.append(answer["created"])
            truth = answer["usage"]["octavo"]
            assert 0 <= truth["queue_s"] + truth["prefill_s"] + truth["decode_s"] <= time.monotonic() - began
            assert running.http.get("/ready").status_code == 200
        assert max(created) - min(created) > 24 * 3600, "the clock did jump"
        assert 0 < running.metric("octavo_request_seconds_sum") <= time.monotonic() - began
        assert running.metric("octavo_engine_restarts_total") == 0
        assert running.stop() == 0
