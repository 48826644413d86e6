"""What ``examples/`` shows, as far as it can be run here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.running_server import RunningServer

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("name", ["openai_chat.py", "openai_streaming.py"])
def test_the_openai_examples_run(server: RunningServer, name: str) -> None:
    env = {**os.environ, "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none"}
    done = subprocess.run([sys.executable, EXAMPLES / name], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "tokens" in done.stdout


def test_the_dashboard_shows_documented_metrics_only() -> None:
    documented = set(re.findall(r"octavo_\w+", (ROOT / "docs" / "metrics.md").read_text()))
    dashboard = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown = {name.removesuffix("_bucket") for text in expressions for name in re.findall(r"octavo_\w+", text)}
    assert len(expressions) > 12
    assert shown <= documented


@pytest.mark.parametrize("name", ["octavo.service", "Dockerfile"])
def test_the_commands_in_service_files_are_ours(name: str) -> None:
    """Every option they pass exists."""
    text = (EXAMPLES / name).read_text()
    help_text = subprocess.run(
        [sys.executable, "-m", "octavo", "serve", "--help"], capture_output=True, text=True, check=True
    ).stdout
    command = re.search(r"ExecStart=\S+ serve (.*)|ENTRYPOINT (.*)", text)
    assert command is not None
    options = re.findall(r"--[a-z-]+", command[0])
    assert options
    assert [option for option in options if option not in help_text] == []
