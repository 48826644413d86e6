"""``octavo chat`` over a pipe and on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping

CHAT = ["chat", "--max-tokens", "24"]
COMMAND = [sys.executable, "-m", "octavo", *CHAT]
RunOctavo = Callable[..., subprocess.CompletedProcess[str]]


def counts(truth: str) -> list[tuple[int, int, int]]:
    """(prompt, cached, generated) of each turn."""
    found = re.findall(r"^\[(\d+) prompt tokens(?: \((\d+) cached\))? \+ (\d+) generated", truth, re.MULTILINE)
    return [(int(prompt), int(cached or 0), int(generated)) for prompt, cached, generated in found]


def test_a_turn_finds_the_turns_before_it_in_the_cache(run_octavo: RunOctavo) -> None:
    done = run_octavo(*CHAT, input="My name is Ada.\nWhat is the capital of France?\nAnd of Italy?\n")
    assert done.returncode == 0
    first, second, third = counts(done.stderr)
    assert first[1] == 0
    for before, turn in ((first, second), (second, third)):
        prompt, cached, _ = turn
        assert cached >= before[0] + before[2] - 1, (before, turn)  # all but the token that ended the answer
        assert cached < prompt
    assert "Paris" in done.stdout


def test_reset_forgets(run_octavo: RunOctavo) -> None:
    question = "Which word did I ask you to remember?"
    alone = run_octavo(*CHAT, input=f"{question}\n")
    done = run_octavo(*CHAT, input=f"Remember the word: zebra.\n/reset\n\n   \n{question}\n/exit\nHello\n")
    assert done.returncode == 0
    assert done.stdout.endswith(alone.stdout)
    (first, second), (only,) = counts(done.stderr), counts(alone.stderr)
    assert (second[0], second[2]) == (only[0], only[2])
    assert 0 < second[1] < first[0]  # the words that both conversations begin with


def test_an_unknown_command_is_named_and_not_sent(run_octavo: RunOctavo) -> None:
    done = run_octavo(*CHAT, input="/quit now\n/help\n")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("octavo: there is no command /quit\n")
    assert done.stderr.count("/reset   forget the conversation") == 2


def test_a_conversation_that_outgrows_the_context_says_so(run_octavo: RunOctavo) -> None:
    done = run_octavo("chat", "--max-model-len", "48", "--max-tokens", "4", input="Hello\nHow are you?\n")
    assert done.returncode == 1
    assert re.search(r"^octavo: the prompt has \d+ tokens and the model's limit is 48 for prompt", done.stderr, re.M)


def test_ctrl_c_stops_one_answer_and_the_conversation_goes_on(offline: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "octavo", "chat"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, env=offline, preexec_fn=listen_to_ctrl_c) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"Tell me a very long story, with all the details.\n")
        process.stdin.flush()
        beginning = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(b"What is the capital of France?\n")
    assert process.returncode == 0
    stopped, answered = stderr.decode().splitlines()
    assert stopped.endswith("| stopped]"), stderr
    assert not answered.endswith("| stopped]"), stderr
    (first, then) = counts(stderr.decode())
    assert then[1] >= first[0] + first[2] - 2, (first, then)  # what was computed stays cached
    assert (beginning + stdout).decode().endswith("Paris.\n")


def listen_to_ctrl_c() -> None:
    """A shell may have started the tests with the signal ignored, which is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_on_a_terminal_ctrl_d_leaves(offline: Mapping[str, str]) -> None:
    controller, terminal = pty.openpty()
    with subprocess.Popen(COMMAND, stdin=terminal, stdout=terminal, stderr=terminal, env=offline) as process:
        os.close(terminal)
        screen = Screen(controller)
        try:
            assert "/help lists the commands" in screen.read_until("> ")
            os.write(controller, b"Say hi\n")
            assert re.search(r"\[\d+ prompt tokens \+ \d+ generated", screen.read_until("KV blocks"))
            screen.read_until("> ")
            os.write(controller, b"\x04")
            assert process.wait(60) == 0
        finally:
            process.kill()
    os.close(controller)


class Screen:
    """What a terminal shows, piece by piece."""

    def __init__(self, controller: int) -> None:
        self._controller = controller
        self._unread = ""

    def read_until(self, end: str) -> str:
        """What was not read yet, up to ``end``."""
        while end not in self._unread:
            is_ready, _, _ = select.select([self._controller], [], [], 60)
            assert is_ready, f"no {end!r} in {self._unread!r}"
            self._unread += os.read(self._controller, 1024).decode(errors="replace")
        seen, _, self._unread = self._unread.partition(end)
        return seen + end
