"""``octavo run`` with the default model."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
COMMAND = [sys.executable, "-m", "octavo"]
ENDLESS = ["run", "--raw", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"]
RunOctavo = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def facts(run_octavo: RunOctavo) -> dict[str, Any]:
    """What ``--json`` prints about the question."""
    done = run_octavo("run", QUESTION, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def test_the_answer_goes_to_stdout_and_the_truth_below_it_to_stderr(run_octavo: RunOctavo) -> None:
    done = run_octavo("run", QUESTION)
    assert (done.returncode, done.stdout) == (0, ANSWER + "\n")
    truth = (
        r"\[37 prompt tokens \+ 8 generated \| first token \d+\.\d{3} s \| \d+\.\d tokens/s \| 3 of 512 KV blocks\]\n"
    )
    assert re.fullmatch(truth, done.stderr), done.stderr


def test_json_has_exactly_the_promised_keys(facts: dict[str, Any]) -> None:
    ttft_s, tokens_per_s = facts["ttft_s"], facts["tokens_per_s"]
    assert list(facts.items()) == [
        ("text", ANSWER),
        ("token_ids", [504, 3575, 282, 4649, 314, 7042, 30, 2]),
        ("finish_reason", "stop"),
        ("prompt_tokens", 37),
        ("completion_tokens", 8),
        ("cached_tokens", 0),
        ("ttft_s", ttft_s),
        ("tokens_per_s", tokens_per_s),
        ("blocks_used", 3),
    ]
    assert ttft_s > 0
    assert tokens_per_s > 0


def test_the_smallest_pool_and_chunks_of_7_answer_the_same(run_octavo: RunOctavo, facts: dict[str, Any]) -> None:
    options = ["--num-blocks", "3", "--max-num-batched-tokens", "7", "--num-threads", "1"]
    done = run_octavo("run", QUESTION, "--json", *options)
    assert json.loads(done.stdout)["token_ids"] == facts["token_ids"]


def test_a_dash_reads_the_prompt_from_stdin(run_octavo: RunOctavo, facts: dict[str, Any]) -> None:
    done = run_octavo("run", "-", "--json", input=QUESTION + "\n")
    assert json.loads(done.stdout)["token_ids"] == facts["token_ids"]


def test_raw_leaves_the_chat_template_out(run_octavo: RunOctavo) -> None:
    done = run_octavo("run", "--raw", "The capital of France is", "--max-tokens", "1", "--json")
    answer = json.loads(done.stdout)
    assert answer["prompt_tokens"] == 5
    assert (answer["text"], answer["finish_reason"], answer["tokens_per_s"]) == (" Paris", "length", None)


def test_a_seed_names_a_draw(run_octavo: RunOctavo) -> None:
    def draw(seed: str) -> list[int]:
        options = ["--temperature", "1.5", "--top-p", "0.95", "--max-tokens", "12", "--json"]
        ids: list[int] = json.loads(run_octavo("run", "Write a poem", *options, "--seed", seed).stdout)["token_ids"]
        return ids

    assert draw("7") == draw("7")
    assert draw("7") != draw("8")


def test_a_reader_that_leaves_early_ends_it_quietly(offline: Mapping[str, str]) -> None:
    with subprocess.Popen([*COMMAND, *ENDLESS], stdout=-1, stderr=-1, env=offline) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(3) == b" 13"
        process.stdout.close()
        assert process.wait() == 141
        assert process.stderr.read() == b""


def test_ctrl_c_ends_it_between_two_tokens(offline: Mapping[str, str]) -> None:
    with subprocess.Popen(
        [*COMMAND, *ENDLESS], stdout=-1, stderr=-1, env=offline, preexec_fn=listen_to_ctrl_c
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(3) == b" 13"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
        assert process.returncode == 130
        assert stdout.endswith(b"\n")
        assert re.fullmatch(rb"\[\d+ prompt tokens \+ \d+ generated \|.* \| stopped\]\n", stderr), stderr


def listen_to_ctrl_c() -> None:
    """A shell may have started the tests with the signal ignored, which is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


WATCHED_RUN = """
import sys
events = []
watched = ("socket.", "subprocess.")
sys.addaudithook(lambda name, args: events.append((name, args)) if name.startswith(watched) else None)
from octavo.cli.main import main
assert main(sys.argv[1:]) == 0
print(events)
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")).split()[1])
print("torch" in sys.modules)
"""


def test_it_takes_at_most_600_mb_and_no_network(offline: Mapping[str, str]) -> None:
    command = [sys.executable, "-c", WATCHED_RUN, "run", QUESTION]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=offline)
    answer, events, peak_kb, has_torch = done.stdout.splitlines()
    assert (answer, events, has_torch) == (ANSWER, "[]", "False")
    assert int(peak_kb) * 1024 <= 600e6


# ---- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, exit_code, message",
    [
        (["--max-tokens", "0"], 2, "max_tokens must be between 1 and 2147483647, not 0\n"),
        (["--temperature", "-1"], 2, "temperature must be in [0, 100], not -1.0\n"),
        (
            ["--top-k", "5"],
            2,
            "--top-k changes nothing while the most likely token is taken; give --temp",
        ),
        (["--block-size", "3"], 2, "block_size must be a power of two up to 128, not 3\n"),
        (["--backend", "cuda"], 2, "backend must be auto, native, torch, reference, not cuda\n"),
        (["--device", "cuda"], 2, "the native backend runs on the CPU, not on cuda; backend torch runs there\n"),
        (["--max-model-len", "9000"], 2, "max_model_len is 9000, but the model was made for 8192 positions\n"),
        (["--num-blocks", "2", "--block-size", "8"], 1, "the prompt has 31 tokens and the KV cache holds 16 (2 blocks"),
        (["--model", "no-such-model"], 1, "'no-such-model' is no model: there is no such file or folder.\nA model is"),
        (["--model", "no/such-model"], 1, "no/such-model: "),
        (["--model", str(Path(__file__).parent)], 1, f"{Path(__file__).parent}: the folder has no config.json"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    run_octavo: RunOctavo, arguments: list[str], exit_code: int, message: str
) -> None:
    done = run_octavo("run", "Hi", *arguments)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert done.stderr.startswith(f"octavo: {message}"), done.stderr


def test_prompts_that_are_no_text_or_empty_are_refused(run_octavo: RunOctavo) -> None:
    done = run_octavo("run", "-", input=b"abc\xff")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "octavo: standard input is not UTF-8 text: byte 3 is 0xff; convert it first\n"
    done = run_octavo("run", "--raw", "")
    assert (done.returncode, done.stderr) == (2, "octavo: the prompt is empty; give at least one token\n")


def test_damaged_files_are_refused_by_name_and_field(
    run_octavo: RunOctavo, default_model: Path, tmp_path: Path
) -> None:
    whole = default_model.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: len(whole) // 2])
    done = run_octavo("run", "Hi", "--model", str(cut))
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"octavo: {cut}: [\w.]+: its data ends at byte [\d,]+, but the file ends at .*\n", done.stderr)

    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGML" + whole[4:100])
    done = run_octavo("run", "Hi", "--model", str(other))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"octavo: {other}: magic: must be GGUF, not b'GGML'; this is no GGUF file\n"
