"""What all commands share: help, exit codes, failures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

import octavo
from octavo.cli import main as cli
from octavo.cli import pull
from octavo.errors import ConfigError, DownloadError, ModelFileError, RequestError, RequestTooLargeError

RunOctavo = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    "command, words",
    [
        ("run", ["PROMPT", "--model", "--max-tokens", "--temperature", "--seed", "--json", "--raw", "--backend"]),
        ("chat", ["/reset", "/exit", "ctrl-C", "--model", "--num-blocks"]),
        ("pull", ["$OCTAVO_HOME", "org/name"]),
        ("info", ["--json", "--block-size", "--kv-cache-dtype"]),
    ],
)
def test_help_has_the_options_and_examples(capsys: pytest.CaptureFixture[str], command: str, words: list[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main([command, "--help"])
    text = capsys.readouterr().out
    assert [word for word in [*words, f"examples:\n  octavo {command}"] if word not in text] == []


def test_help_and_version_come_without_numpy() -> None:
    for option in ("--help", "--version"):
        command = [sys.executable, "-X", "importtime", "-m", "octavo", option]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert "octavo.cli.main" in done.stderr
        assert "numpy" not in done.stderr
    assert done.stdout == f"octavo {octavo.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["sing"], ["run"], ["run", "Hi", "--nope"], ["run", "Hi", "--seed", "x"]])
def test_a_wrong_command_line_is_2_and_shows_the_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    assert capsys.readouterr().err.startswith("usage: octavo")


@pytest.mark.parametrize(
    "error, exit_code, message",
    [
        (ConfigError("block_size must be …"), 2, "octavo: block_size must be …\n"),
        (RequestError("top_k must be …"), 2, "octavo: top_k must be …\n"),
        (RequestTooLargeError("the prompt has …"), 1, "octavo: the prompt has …\n"),
        (DownloadError("fetching failed"), 1, "octavo: fetching failed\n"),
        (ModelFileError("m.gguf", "magic", "must be GGUF"), 1, "octavo: m.gguf: magic: must be GGUF\n"),
        (MemoryError("want 5 GB"), 1, "octavo: memory ran out: want 5 GB; try a smaller --max-model-len or --num-bl"),
        (KeyError("slot"), 1, "octavo: a fault of Octavo itself: KeyError: 'slot'\nTo see where, run: python -X dev"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_failures_are_lines_and_exit_codes(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    exit_code: int,
    message: str,
) -> None:
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setattr(pull, "pull", fail)
    assert cli.main(["pull"]) == exit_code
    stderr = capsys.readouterr().err
    assert stderr.startswith(message)
    assert bool(stderr) == bool(message)


def test_development_mode_shows_the_traceback() -> None:
    command = [sys.executable, "-X", "dev", "-m", "octavo", "info", "no-such-model"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ModelNotFoundError" in done.stderr
