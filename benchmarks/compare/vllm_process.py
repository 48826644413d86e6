"""vLLM's scheduler in a process of its own, driven by lines of JSON, so that its turns and ours alternate."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "vllm_scheduler.py"


class VLLMProcess:
    """``vllm_scheduler.py`` under another interpreter; it ends with this one.

    Args:
        python: an interpreter that can import vllm.
    """

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [python, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """One measurement. Raises ``SystemExit`` with the process's last words if it died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):  # vLLM logs to the same place
                answer: dict[str, Any] = json.loads(line)
                return answer
        _, errors = self._process.communicate()
        raise SystemExit(f"vLLM's process ended with {self._process.returncode}:\n{errors[-2000:]}")
