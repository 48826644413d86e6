"""Whatever comes in: 4xx with a reason, never 5xx, never a hang."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.running_server import RunningServer

CHAT = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2}
TEXT = {"prompt": "abc", "max_tokens": 2}
NUM_FUZZED = 3000

BROKEN_BODIES = {
    "empty": b"",
    "no JSON": b"hello",
    "cut off": b'{"prompt": "abc"',
    "not UTF-8": b'{"prompt": "\xff\xfe"}',
    "NaN": b'{"prompt": "abc", "temperature": NaN}',
    "Infinity": b'{"prompt": "abc", "temperature": Infinity}',
    "overflowing number": b'{"prompt": "abc", "temperature": 1e999}',
    "half a surrogate pair": b'{"prompt": "\\ud800 abc"}',
    "deep list": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep object": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "many digits": b'{"prompt": "abc", "seed": ' + b"9" * 100_000 + b"}",
    "a list": b"[]",
    "a number": b"17",
    "null": b"null",
    "byte order mark": b'\xef\xbb\xbf{"prompt": "abc"}',
}


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("body", BROKEN_BODIES.values(), ids=BROKEN_BODIES)
def test_broken_bodies_are_refused(http: httpx.Client, endpoint: str, body: bytes) -> None:
    response = http.post(endpoint, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"temprature": 1}, "unknown field temprature"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
        ({"max_tokens": -1}, "max_tokens must be between 1"),
        ({"max_tokens": "5"}, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": 2.5}, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": 10**30}, "max_tokens must be between 1"),
        ({"max_tokens": True}, "max_tokens: Input should be a valid integer"),
        ({"temperature": -0.1}, "temperature must be in"),
        ({"top_p": 0}, "top_p must be in (0, 1]"),
        ({"n": 0}, "n must be between 1"),
        ({"n": 1000}, "n must be between 1 and 128"),
        ({"seed": 2**64}, "seed must be between"),
        ({"seed": 1.0}, "seed: Input should be a valid integer"),
        ({"stop": [""]}, "stop must hold non-empty strings"),
        ({"stop": ["a"] * 100}, "stop has 100 strings"),
        ({"stop_token_ids": [128]}, "ids go from 0 to 127"),
        ({"stop_token_ids": [-1]}, "stop_token_ids must be between"),
        ({"logit_bias": {"128": 1}}, "ids go from 0 to 127"),
        ({"logit_bias": {"x": 1}}, "keys are token ids"),
        ({"logit_bias": {"5": 101}}, "logit_bias must be in"),
        ({"stream_options": {"include_usage": True}}, "stream_options needs stream: true"),
        ({"stream": "yes"}, "stream: Input should be a valid boolean"),
        ({"frequency_penalty": 3}, "frequency_penalty must be in [-2, 2]"),
        ({"min_tokens": 5}, "min_tokens (5) must not exceed max_tokens (2)"),
        ({"priority": 2**40}, "priority"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"cache_salt": 5}, "cache_salt: Input should be a valid string"),
    ],
)
def test_wrong_fields_are_named(http: httpx.Client, fields: dict[str, Any], message: str) -> None:
    for endpoint, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
        response = http.post(endpoint, json={**body, **fields})
        assert response.status_code == 400, (endpoint, response.text)
        assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"prompt": [128]}, "prompt token 0 is 128; ids go from 0 to 127"),
        ({"prompt": [-1]}, "prompt token 0 is -1"),
        ({"prompt": [2**70]}, "ids go from 0 to 127"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": [[]]}, "the prompt is empty"),
        ({"prompt": ["a"] * 300}, "at most 256"),
        ({"prompt": ["a"] * 200, "n": 10}, "200 prompts times n = 10 is more than 1024 choices"),
        ({"prompt": None}, "prompt"),
        ({"max_tokens": 0}, "max_tokens is 0, which makes sense with echo only"),
        ({"logprobs": 51}, "logprobs must be between 0 and 50"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs is not possible in a stream"),
        ({"suffix": "x"}, "suffix is not supported"),
        ({"best_of": 3}, "best_of is not supported"),
    ],
)
def test_wrong_completions_are_named(http: httpx.Client, fields: dict[str, Any], message: str) -> None:
    response = http.post("/v1/completions", json={**TEXT, **fields})
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "messages, message",
    [
        ([], "messages"),
        ([{"role": "user"}], "content"),
        ([{"role": "king", "content": "a"}], "messages.0.role"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages.0.content"),
        ([{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}], "tool_calls"),
        ("hello", "messages"),
        ([["user", "a"]], "messages.0"),
    ],
)
def test_wrong_messages_are_named(http: httpx.Client, messages: object, message: str) -> None:
    response = http.post("/v1/chat/completions", json={**CHAT, "messages": messages})
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]


def test_the_api_page_tells_the_bounds(http: httpx.Client) -> None:
    """What it calls the least and the most is accepted, and what lies beyond is not."""
    fields = http.get("/openapi.json").json()["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    num_bounds = 0
    for name, schema in fields.items():
        for bounds in (schema, *schema.get("anyOf", ())):
            for keyword, step in (("minimum", -1), ("maximum", 1), ("exclusiveMinimum", 0)):
                if keyword not in bounds or bounds.get("type") == "array":
                    continue
                number = int if bounds["type"] == "integer" else float
                bound, num_bounds = number(bounds[keyword]), num_bounds + 1
                logprobs = {"logprobs": True} if name == "top_logprobs" else {}
                beyond = http.post("/v1/chat/completions", json={**CHAT, **logprobs, name: bound + step})
                assert beyond.status_code == 400, (name, bound + step)
                if step and name != "n" and "_tokens" not in name:  # those go with each other, or take long
                    within = http.post("/v1/chat/completions", json={**CHAT, **logprobs, name: bound})
                    assert within.status_code == 200, (name, bound, within.text)
    assert num_bounds > 20


def test_prompt_logprobs_are_for_completions(http: httpx.Client) -> None:
    response = http.post("/v1/chat/completions", json={**CHAT, "prompt_logprobs": 1})
    assert response.status_code == 400
    assert "prompt_logprobs is possible with /v1/completions only" in response.json()["error"]["message"]


def test_grammar_on_the_hot_path(http: httpx.Client) -> None:
    """A schema of twelve nested choices is a clear error, whose cost does not grow with the schema."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(12):
        schema = {"oneOf": [schema, {"type": "object", "properties": {"a": schema}}]}
    wanted = {"type": "json_schema", "json_schema": {"name": "deep", "schema": schema}}
    response = http.post("/v1/chat/completions", json={**CHAT, "response_format": wanted})
    assert response.status_code == 400
    assert "response_format is not supported" in response.json()["error"]["message"]


def test_what_changes_nothing_is_accepted(http: httpx.Client) -> None:
    neutral = {"tools": None, "tool_choice": "none", "response_format": {"type": "text"}, "store": False, "user": "me"}
    neutral |= {"service_tier": "auto", "parallel_tool_calls": True, "metadata": None, "stop": None, "n": None}
    assert http.post("/v1/chat/completions", json={**CHAT, **neutral}).status_code == 200


def test_unknown_paths_and_methods_have_the_same_shape(http: httpx.Client) -> None:
    for response, status in ((http.get("/v1/nothing"), 404), (http.get("/v1/completions"), 405)):
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert response.headers["allow"] == "POST"


def test_other_content_types_are_refused(http: httpx.Client) -> None:
    response = http.post("/v1/completions", content=b"prompt=abc", headers={"content-type": "text/plain"})
    assert response.status_code == 400
    assert "Content-Type: application/json" in response.json()["error"]["message"]


def test_an_error_does_not_repeat_what_was_sent(http: httpx.Client) -> None:
    response = http.post("/v1/chat/completions", json={"messages": "secret" * 1000, "x" * 5000: 1})
    assert "secret" not in response.text
    assert len(response.text) < 2000


COMMON = "temperature top_p top_k min_p n stop seed logit_bias stream max_tokens min_tokens user priority deadline_s"
COMMON += " frequency_penalty presence_penalty repetition_penalty ignore_eos model cache_salt stop_token_ids"
FUZZED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", CHAT, COMMON + " messages logprobs max_completion_tokens tools"),
    ("/v1/completions", TEXT, COMMON + " prompt logprobs prompt_logprobs echo suffix"),
    ("/tokenize", {"prompt": "abc"}, "prompt model add_special_tokens return_token_strs"),
    ("/detokenize", {"tokens": [5]}, "tokens model"),
]


def mutant(rng: random.Random) -> tuple[str, bytes]:
    """A valid body with some values or bytes replaced."""
    endpoint, body, fields = rng.choice(FUZZED)
    mutated = dict(body)
    for _ in range(rng.choice([1, 1, 1, 2])):
        mutated[rng.choice(fields.split())] = value(rng, 0)
    data = json.dumps(mutated).encode()
    if rng.random() < 0.1:
        place = rng.randrange(len(data))
        data = data[:place] + bytes([rng.randrange(256)]) + data[place + rng.randint(0, 2) :]
    return endpoint, data


def value(rng: random.Random, depth: int) -> Any:
    plain = [None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**40, 0.5, -0.0, 1e308, float("nan"), float("inf")]
    plain += ["", "abc", "\ud800", "\udfff\ud800", "\0", "é" * 50, "0", "default", "tiny", "1e5", "[]"]
    if depth < 3 and rng.random() < 0.3:
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if depth < 3 and rng.random() < 0.3:
        keys = ["role", "content", "type", "text", "5", "-1", "include_usage", "", "x"]
        return {rng.choice(keys): value(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    return rng.choice(plain)


def test_fuzzed_bodies_never_break_the_server(server: RunningServer) -> None:
    rng = random.Random(11)
    mutants = [mutant(rng) for _ in range(NUM_FUZZED)]

    def send_all(part: list[tuple[str, bytes]]) -> list[int]:
        headers = {"content-type": "application/json"}
        with httpx.Client(base_url=server.url, timeout=60) as client:
            statuses = []
            for endpoint, data in part:
                response = client.post(endpoint, content=data, headers=headers)
                assert response.status_code < 500, (endpoint, data, response.text)
                statuses.append(response.status_code)
            return statuses

    with ThreadPoolExecutor(4) as threads:
        statuses = [status for part in threads.map(send_all, (mutants[i::4] for i in range(4))) for status in part]
    assert set(statuses) <= {200, 400, 404}
    assert min(statuses.count(200), statuses.count(400)) > 50
    server.wait_for_metric("octavo_requests", 0, state="running")
    server.wait_for_metric("octavo_kv_cache_blocks", 0, state="held")
