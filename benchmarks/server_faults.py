"""``kill -9`` of the engine, again and again, under load: no request fails, and every answer is what it is without.

    python benchmarks/server_faults.py --streams 64 --kills 10

The streams run once undisturbed and once with kills at random moments; texts, ends, and log probabilities of all are
compared. Exits with 1 if any differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import httpx
from support.running_server import RunningServer

Answer = tuple[str, str | None, list[float], int]


async def ask(client: httpx.AsyncClient, number: int, max_tokens: int) -> Answer:
    """One stream: text, end, log probabilities, and the engine processes that died under it."""
    body = {
        "prompt": f"A story about the number {number}:",
        "max_tokens": max_tokens + number % 7 * 10,
        "temperature": 0.9 if number % 2 else 0,
        "seed": number,
        "logprobs": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text, end, logprobs, num_deaths, is_done = "", None, [], 0, False
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                is_done = True
            elif line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                for choice in event["choices"]:
                    text += choice["text"]
                    end = choice["finish_reason"] or end
                    logprobs += choice["logprobs"]["token_logprobs"]
                if event["usage"] is not None:
                    num_deaths = event["usage"]["octavo"]["num_engine_restarts"]
    assert is_done, f"stream {number} broke off"
    return text, end, logprobs, num_deaths


async def run(server: RunningServer, num_streams: int, max_tokens: int, num_kills: int) -> tuple[list[Answer], int]:
    """All streams at once, and again until every kill has had its moment; answers of all rounds."""
    num_killed, rounds = 0, []
    limits = httpx.Limits(max_connections=num_streams + 1)  # one more for the probe
    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
        while True:
            streams = asyncio.gather(*(ask(client, number, max_tokens) for number in range(num_streams)))
            while num_killed < num_kills and not streams.done():
                await asyncio.sleep(random.uniform(0.2, 2.0))
                if not streams.done() and (await client.get("/ready")).status_code == 200:
                    await asyncio.to_thread(server.kill_engine)
                    num_killed += 1
            rounds += await streams
            if num_killed >= num_kills:
                return rounds, num_killed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=150)
    parser.add_argument("--kills", type=int, default=10)
    arguments = parser.parse_args()
    began = time.time()
    with RunningServer("--model", arguments.model) as server:
        undisturbed, _ = asyncio.run(run(server, arguments.streams, arguments.max_tokens, 0))
        disturbed, num_killed = asyncio.run(run(server, arguments.streams, arguments.max_tokens, arguments.kills))
        restarts = server.metric("octavo_engine_restarts_total")
        held = server.metric("octavo_kv_cache_blocks", state="held")
    expected = undisturbed * (len(disturbed) // len(undisturbed))
    different = [
        number for number, pair in enumerate(zip(expected, disturbed, strict=True)) if pair[0][:3] != pair[1][:3]
    ]
    most = max(answer[3] for answer in disturbed)
    print(
        f"{num_killed} kills, {restarts:.0f} restarts, {len(disturbed)} answers: {len(different)} differ, 0 failed; "
        f"a stream lived through up to {most} deaths; {held:.0f} blocks held at the end; {time.time() - began:.0f} s"
    )
    return 1 if different or held else 0


if __name__ == "__main__":
    sys.exit(main())
