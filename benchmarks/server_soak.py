"""Many clients, well and badly behaved, for a while: answers stay right, nothing leaks, the pool drains.

    python benchmarks/server_soak.py --streams 200 --seconds 120

Of the clients 10 % leave in the middle; others read slowly, send half a head or half a body, or send too much. Every
answer that completes is compared with what the same request gets alone. Exits with 1 if one differs, a request fails,
blocks stay held, a connection stays open, or either process's memory grows after the first third by more than 20 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import httpx
from support.running_server import RunningServer, wait_until

NUM_KINDS = 40
"""Different requests."""
MAX_GROWTH_MB = 20


def body_of(kind: int) -> dict[str, object]:
    return {
        "prompt": f"{'Once upon a time ' * (kind % 8)}there was the number {kind}.",
        "max_tokens": 5 + kind // 2,
        "temperature": 0.8 if kind % 2 else 0,
        "seed": kind,
        "stream": True,
    }


async def read(response: httpx.Response, draw: random.Random, *, slowly: bool, leaves: bool) -> str | None:
    """The text of a stream; ``None`` if this client left."""
    text, is_done = "", False
    leave_after = draw.randint(0, 10) if leaves else None
    number = 0
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            is_done = True
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            text += "".join(choice["text"] for choice in event["choices"])
            number += 1
        if slowly:
            await asyncio.sleep(0.02)
        if leave_after is not None and number >= leave_after:
            return None
    assert is_done, "a stream broke off"
    return text


class Soak:
    def __init__(self, server: RunningServer, seconds: float) -> None:
        self.server = server
        self.seconds = seconds
        self.end_s = 0.0
        self.alone: dict[int, str] = {}
        self.counts = {"right": 0, "wrong": 0, "left": 0, "failed": 0, "refused bodies": 0, "half-open": 0}

    async def one_client(self, client: httpx.AsyncClient, number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < self.end_s:
            chance = draw.random()
            if chance < 0.02:
                await self.send_too_much(client)
            elif chance < 0.04:
                await self.send_half(draw)
            else:
                await self.ask(client, draw, slowly=chance < 0.10, leaves=chance > 0.90)

    async def ask(self, client: httpx.AsyncClient, draw: random.Random, *, slowly: bool, leaves: bool) -> None:
        kind = draw.randrange(NUM_KINDS)
        try:
            async with client.stream("POST", "/v1/completions", json=body_of(kind)) as response:
                assert response.status_code == 200, await response.aread()
                text = await read(response, draw, slowly=slowly, leaves=leaves)
        except (AssertionError, httpx.HTTPError) as error:
            self.counts["failed"] += 1
            print(f"failed: {error!r}", file=sys.stderr)
            return
        if text is None:
            self.counts["left"] += 1
        else:
            self.counts["right" if text == self.alone[kind] else "wrong"] += 1

    async def send_too_much(self, client: httpx.AsyncClient) -> None:
        try:
            response = await client.post("/v1/completions", content=b"x" * (17 * 2**20))
            assert response.status_code == 413
        except httpx.HTTPError:  # the server has closed while we were still sending
            pass
        self.counts["refused bodies"] += 1

    async def send_half(self, draw: random.Random) -> None:
        """A client that sends half a head or half a body, and does not close for a while."""
        address = urlsplit(self.server.url)
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n"
        writer.write(head + draw.choice([b"", b"\r\n{"]))
        await asyncio.sleep(draw.uniform(0, 5))
        writer.close()
        self.counts["half-open"] += 1

    async def run(self, num_streams: int) -> list[tuple[float, float]]:
        """The resident megabytes of the server and of its engine, every second."""
        limits = httpx.Limits(max_connections=num_streams)
        async with httpx.AsyncClient(base_url=self.server.url, timeout=300, limits=limits) as client:
            for kind in range(NUM_KINDS):
                async with client.stream("POST", "/v1/completions", json=body_of(kind)) as response:
                    text = await read(response, random.Random(0), slowly=False, leaves=False)
                    assert text is not None
                    self.alone[kind] = text
            self.end_s = time.monotonic() + self.seconds
            clients = asyncio.gather(*(self.one_client(client, number) for number in range(num_streams)))
            memory_mb = []
            engine = self.server.engine_pid()
            assert engine is not None
            while not clients.done():
                memory_mb.append((resident_mb(self.server.process.pid), resident_mb(engine)))
                await asyncio.sleep(1)
            await clients
            return memory_mb


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def num_sockets(pid: int) -> int:
    return sum(os.readlink(entry).startswith("socket:") for entry in Path(f"/proc/{pid}/fd").iterdir())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120)
    arguments = parser.parse_args()
    with RunningServer("--model", arguments.model) as server:
        at_start = num_sockets(server.process.pid)
        soak = Soak(server, arguments.seconds)
        memory_mb = asyncio.run(soak.run(arguments.streams))
        server.wait_for_metric("octavo_kv_cache_blocks", 0, 60, state="held")
        server.wait_for_metric("octavo_requests", 0, 60, state="running")
        wait_until(lambda: num_sockets(server.process.pid) <= at_start, 60, "all connections are closed")
        breaches = server.metric("octavo_kv_cache_breaches_total")
        restarts = server.metric("octavo_engine_restarts_total")
        status = server.stop()
    print(", ".join(f"{count} {name}" for name, count in soak.counts.items()))
    growths = []
    for name, values in zip(("server", "engine"), zip(*memory_mb, strict=True), strict=True):
        settled = values[len(values) // 3]
        growths.append(max(values[-5:]) - settled)
        print(f"{name}: {settled:.0f} MB after a third, {growths[-1]:+.1f} MB at the end; ", end="")
    print(
        f"{breaches:.0f} breaches, {restarts:.0f} restarts, exit status {status}; no block is held, no connection open"
    )
    bad = soak.counts["wrong"] or soak.counts["failed"] or breaches or restarts or status
    return 1 if bad or max(growths) > MAX_GROWTH_MB else 0


if __name__ == "__main__":
    sys.exit(main())
