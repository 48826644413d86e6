"""A real server process on a free port of this machine, and what tests do to it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx

from support.tiny_llm import tiny_model, write_json

START_S = 60.0
COMMAND = (sys.executable, "-m", "octavo", "serve")


class RunningServer:
    """``octavo serve`` with some options; leave its context to stop it.

    Attributes:
        url: such as ``http://127.0.0.1:40123``.
        log: lines of its standard error so far.
        http: a client for it, for many threads; its connections end with their requests.
    """

    def __init__(self, *options: str, command: Sequence[str] = COMMAND, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*command, "--port", "0", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.log: list[str] = []
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            wait_until(lambda: self.url or self.process.poll() is not None, START_S, "the server starts")
            assert self.url, "".join(self.log)
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            self.http = httpx.Client(base_url=self.url, timeout=120, limits=limits, verify=False)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> int:
        """SIGTERM, as a service manager sends it; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        finally:
            self.kill()

    def kill(self) -> None:
        """The end, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(10)
        if self.url:
            self.http.close()

    def engine_pid(self) -> int | None:
        """Of the engine's process; ``None`` while there is none."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def kill_engine(self) -> None:
        """``kill -9`` of the engine's process, once there is one; returns when the server has noticed."""
        wait_until(lambda: self.engine_pid() is not None, START_S, "there is an engine")
        pid = self.engine_pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: self.engine_pid() != pid, START_S, "its end is noticed")

    @contextlib.contextmanager
    def frozen_engine(self) -> Iterator[Callable[[Callable[[], object], str], None]]:
        """Its engine stands still, so that what a test has arranged stays so, however fast the machine.

        Yields ``advance(condition, what)``, which lets the engine run in short moments until the condition holds.
        """
        pid = self.engine_pid()
        assert pid is not None

        def advance(condition: Callable[[], object], what: str) -> None:
            def step_and_look() -> object:
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.002)
                os.kill(pid, signal.SIGSTOP)
                return condition()

            wait_until(step_and_look, 60, what)

        os.kill(pid, signal.SIGSTOP)
        try:
            yield advance
        finally:
            os.kill(pid, signal.SIGCONT)

    def metric(self, name: str, **labels: str) -> float:
        """The value of one metric."""
        shown = ",".join(f'{key}="{value}"' for key, value in labels.items())
        line = re.escape(name + (f"{{{shown}}}" if shown else ""))
        found = re.search(f"^{line} (.*)$", self.http.get("/metrics").text, re.MULTILINE)
        assert found is not None, line
        return float(found[1])

    def wait_for_metric(self, name: str, value: float, limit_s: float = 30.0, **labels: str) -> None:
        """Until a metric has the value."""
        wait_until(lambda: self.metric(name, **labels) == value, limit_s, f"{name} {labels} is {value}")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"octavo serves (\S+)/v1", line):
                self.url = found[1]


def wait_until(condition: Callable[[], object], limit_s: float, what: str) -> None:
    """Poll; an ``AssertionError`` names ``what`` did not come true in time."""
    give_up_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < give_up_s, f"waited {limit_s} s in vain until {what}"
        time.sleep(0.01)


def tiny_chat_model(folder: Path, num_positions: int = 4096) -> Path:
    """A model that answers noise within milliseconds, with room for long streams."""
    import json

    tiny_model(folder)
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, "max_position_embeddings": num_positions})
    return folder
