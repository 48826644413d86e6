"""The four traces on which eviction policies are compared, in blocks of 512 tokens."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 512
_AGENT_BLOCK_TOKENS = 64
_ENDINGS = {"tool_use": "tool_calls", "end_turn": "stop"}


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One prompt.

    Attributes:
        blocks: ids of its full blocks, root first; an id names its whole prefix.
        num_tokens: of the prompt, the last, partly filled block included.
        ending: why the answer ended, in the engine's words; ``None`` where the trace does not say.
    """

    arrival_s: float
    blocks: list[int]
    num_tokens: int
    num_output_tokens: int
    ending: str | None


def read_mooncake(path: Path) -> list[TraceRequest]:
    """A trace of Mooncake (Apache-2.0), with real arrival times: ``hash_ids`` are prefix-chained, 512 tokens each."""
    return [
        TraceRequest(
            row["timestamp"] / 1e3,
            row["hash_ids"][: row["input_length"] // BLOCK_TOKENS],
            row["input_length"],
            row["output_length"],
            None,
        )
        for row in _rows(path)
    ]


def read_agents(path: Path, part: int, *, num_sessions: int = 150) -> list[TraceRequest]:
    """Half of the coding-agent sessions of kv-cache-tester (Apache-2.0), served from one pool over eight hours.

    Real: prefixes, lengths, and all times within a session. The source has no absolute clock, so sessions start at
    random times within six hours. Its ids are local to a session; sessions whose tool definitions are equally long
    are taken to share that prefix. Parts 0 and 1 have no session in common.
    """
    sessions = list(_rows(path))[part::2]
    draw = random.Random(1 + part)
    draw.shuffle(sessions)
    stride = BLOCK_TOKENS // _AGENT_BLOCK_TOKENS
    numbers: dict[tuple[object, ...], int] = {}
    requests: list[TraceRequest] = []
    for session in sessions[:num_sessions]:
        start_s, num_shared = draw.uniform(0, 6 * 3600), session["tool"] // BLOCK_TOKENS
        for row in session["requests"]:
            if start_s + row["t"] > 8 * 3600:
                break
            ids = [each for first, count in row["runs"] for each in range(first, first + count)][stride - 1 :: stride]
            blocks = []
            for index, each in enumerate(ids):
                key = ("tool", session["tool"], index) if index < num_shared else (session["id"], each)
                blocks.append(numbers.setdefault(key, len(numbers)))
            ending = _ENDINGS.get(row["stop"])
            requests.append(TraceRequest(start_s + row["t"], blocks, row["in"], row["out"], ending))
    return sorted(requests, key=lambda request: request.arrival_s)


def _rows(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt") as file:
        for line in file:
            yield json.loads(line)


TRACES: dict[str, Callable[[Path], list[TraceRequest]]] = {
    "agents-a": lambda folder: read_agents(folder / "claude_code_sessions.jsonl.gz", 0),
    "agents-b": lambda folder: read_agents(folder / "claude_code_sessions.jsonl.gz", 1),
    "chat": lambda folder: read_mooncake(folder / "conversation_trace.jsonl.gz"),
    "synthetic": lambda folder: read_mooncake(folder / "synthetic_trace.jsonl.gz"),
}
"""By name; each takes the folder with the files."""
