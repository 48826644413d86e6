"""An engine in a process of its own, under its own interpreter, driven by lines of JSON.

So each engine has its own packages, and the turns of all of them can alternate in one run.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


class PeerProcess:
    """A script of this folder under another interpreter; it ends with this one.

    Args:
        python: an interpreter that has what the script imports.
        script: a file of this folder. It answers each line of JSON on its standard input with one on its standard
            output; lines that do not begin with a brace are the engine's own talk.
    """

    def __init__(self, python: Path, script: str, *arguments: str | Path) -> None:
        self._script = script
        self._process = subprocess.Popen(
            [python, FOLDER / script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send a question and read the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self.read()

    def read(self) -> dict[str, Any]:
        """The next answer. Raises ``SystemExit`` if the process has died; its last words are on standard error."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SystemExit(f"{self._script} ended with {self._process.wait()}")

    def close(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
