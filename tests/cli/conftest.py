"""The command as people run it: a process of its own, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from octavo.weights.sources import resolve_model

NOWHERE = "http://127.0.0.1:9"
OFFLINE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "PIP_INDEX_URL"), NOWHERE)
OFFLINE |= {"PIP_NO_INDEX": "1", "HF_ENDPOINT": NOWHERE, "HF_HUB_OFFLINE": "1"}

COMMAND = [sys.executable, "-m", "octavo"]

RunOctavo = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's file, fetched before the first test that needs it."""
    return resolve_model("default")


@pytest.fixture(scope="session")
def offline(default_model: Path) -> Mapping[str, str]:
    """The environment of a machine that has the default model and no network."""
    return {**os.environ, **OFFLINE}


@pytest.fixture(scope="session")
def run_octavo(offline: Mapping[str, str]) -> RunOctavo:
    """``run_octavo("run", "Hello")``; nothing that goes wrong may show a traceback."""

    def run(
        *arguments: str, input: str | bytes = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        data = input.encode() if isinstance(input, str) else input
        done = subprocess.run([*COMMAND, *arguments], input=data, capture_output=True, env={**offline, **(env or {})})
        result = subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
        assert "Traceback" not in result.stderr, result.stderr
        return result

    return run
