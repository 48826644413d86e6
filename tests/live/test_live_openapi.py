"""The API page against the server, by schemathesis: what the page says is what happens, and nothing breaks it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.running_server import RunningServer, tiny_chat_model


def test_generated_requests_get_what_the_api_page_says(tmp_path: Path) -> None:
    """Wrong and right requests, many at the edges of the page's types: no 5xx, no answer that the page does not have.

    Left out is that the page's right requests are all accepted: their prompts have any length and their names any text.
    """
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"]
    options = ["--phases=examples,coverage,fuzzing", "--max-examples=100", "--generation-deterministic"]
    options += ["--checks=all", "--exclude-checks=positive_data_acceptance", "--request-timeout=30", "--no-color"]
    with RunningServer("--model", str(tiny_chat_model(tmp_path / "tiny")), "--served-model-name", "0") as server:
        done = subprocess.run(
            [*command, f"{server.url}/openapi.json", *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
        found = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
        assert found is not None, done.stdout
        assert int(found[1]) == int(found[2]) > 1000
        assert server.metric("octavo_engine_restarts_total") == 0
        server.wait_for_metric("octavo_kv_cache_blocks", 0, state="held")
        assert not any("ERROR" in line for line in server.log), "".join(server.log)
