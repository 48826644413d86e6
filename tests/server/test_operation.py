"""Metrics, version, tokens, the API page, and what the log tells."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
from support.running_server import RunningServer

import octavo

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
METRICS = re.findall(r"^\| `(octavo_\w+)", PAGE.read_text(), re.MULTILINE)
"""As they are documented."""


def test_every_metric_is_documented_and_every_documented_one_is_there(http: httpx.Client) -> None:
    text = http.get("/metrics").text
    kinds = dict(re.findall(r"^# TYPE (octavo_\w+) (\w+)$", text, re.MULTILINE))
    assert sorted(METRICS) == sorted(name for name in kinds if not name.endswith("_created"))


def test_metrics_count(server: RunningServer, http: httpx.Client) -> None:
    before = {name: server.metric(name) for name in METRICS if name.endswith("tokens_total")}
    body = {"prompt": [20, 21, 22, 23, 24], "max_tokens": 7, "ignore_eos": True, "cache_salt": "metrics"}
    assert http.post("/v1/completions", json=body).status_code == 200
    server.wait_for_metric("octavo_generated_tokens_total", before["octavo_generated_tokens_total"] + 7)
    server.wait_for_metric("octavo_prompt_tokens_total", before["octavo_prompt_tokens_total"] + 5)
    server.wait_for_metric("octavo_computed_tokens_total", before["octavo_computed_tokens_total"] + 5 + 6)


def test_blocks_are_free_cached_or_held(server: RunningServer) -> None:
    server.wait_for_metric("octavo_kv_cache_blocks", 0, state="held")
    total = sum(server.metric("octavo_kv_cache_blocks", state=state) for state in ("free", "cached", "held"))
    assert total == 64 * 4096 / 16


def test_memory_report_of_a_running_request(server: RunningServer, http: httpx.Client) -> None:
    """By its id, while it runs; for people, ``octavo info --live`` prints the same."""
    body = {"prompt": [31] * 40, "max_tokens": 4000, "ignore_eos": True, "stream": True, "n": 2, "cache_salt": "live"}
    with http.stream("POST", "/v1/completions", json=body) as response:
        chunks = response.iter_lines()  # kept: the stream ends with its iterator
        request_id = json.loads(next(chunks).removeprefix("data: "))["id"]
        report = http.get("/memory").json()
        command = [sys.executable, "-m", "octavo", "info", "--live", server.url]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert report["num_blank"] + report["num_cached"] + report["num_held"] == report["num_blocks"] == 64 * 4096 / 16
    samples = [each for each in report["requests"] if each["request_id"].startswith(request_id)]
    assert len(samples) == 2
    for sample in samples:
        assert sample["num_blocks"] >= 3
        assert sample["num_shared_blocks"] >= 2  # of the prompt
        assert 0 <= sample["num_wasted_slots"] < 16
    assert sum(each["blocks"] for each in report["cached_by_age"]) == report["num_cached"]
    assert lines[0].startswith("KV cache, 16,384 blocks of 16 tokens")
    assert sum(request_id in line for line in lines) == 2


def test_live_says_when_nobody_answers() -> None:
    command = [sys.executable, "-m", "octavo", "info", "--live", "http://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no Octavo server answers there" in done.stderr
    assert "Traceback" not in done.stderr


def test_tokens_there_and_back(http: httpx.Client) -> None:
    answer = http.post("/tokenize", json={"prompt": "the stop", "return_token_strs": True}).json()
    assert answer["token_strs"] == ["the", " stop"]
    assert (answer["count"], answer["max_model_len"]) == (2, 4096)
    assert http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "the stop"}
    chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "the stop"}]}).json()
    assert http.post("/detokenize", json={"tokens": chat["tokens"]}).json()["prompt"] == "user: the stop\nassistant: "


def test_the_version_and_the_api_page(http: httpx.Client) -> None:
    assert http.get("/version").json() == {"version": octavo.__version__}
    page = http.get("/openapi.json").json()
    paths = {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/detokenize", "/health", "/ready"}
    assert paths <= set(page["paths"])
    assert "max_completion_tokens" in page["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert http.get("/docs").status_code == 200


def test_browsers_of_other_pages_are_not_let_in(http: httpx.Client) -> None:
    response = http.get("/v1/models", headers={"origin": "https://example.org"})
    assert "access-control-allow-origin" not in response.headers


def test_the_log_tells_no_text(server: RunningServer, http: httpx.Client) -> None:
    http.post("/v1/completions", json={"prompt": "SECRET WORDS", "max_tokens": 2})
    http.post("/v1/completions", json={"prompt": ["SECRET WORDS", 5]})
    assert not any("SECRET" in line for line in server.log)
