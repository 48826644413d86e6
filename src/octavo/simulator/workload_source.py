"""A workload by name: a trace file or a generator with its numbers, at the size that is wanted.

::

    traces/conversation_trace.jsonl.gz        a file; its kind is told by its contents
    chat:users=10000,duration_s=1800          a generator; what is not given has its default
"""

from __future__ import annotations

import csv
import heapq
import inspect
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from octavo.errors import ConfigError
from octavo.simulator.generators import GENERATORS
from octavo.simulator.trace_readers import (
    open_trace,
    read_azure,
    read_burst_gpt,
    read_coding_agents,
    read_mooncake,
    read_share_gpt,
)
from octavo.simulator.workload import WorkloadRequest

SHARE_GPT_RATE = 1.0
"""Requests per second; the file has no times."""
COPY_SPREAD_S = 60.0
"""Copies of a workload start within this time."""


def open_workload(source: str) -> Iterator[WorkloadRequest]:
    """The requests, by arrival. Raises :class:`ConfigError` if nothing of that name can be read."""
    name, _, numbers = source.partition(":")
    if name in GENERATORS:
        return _generate(name, numbers)
    path = Path(source)
    with open_trace(path) as file:
        beginning = file.read(1 << 16)
    if beginning.lstrip().startswith("["):
        return read_share_gpt(path, SHARE_GPT_RATE)
    header = next(csv.reader(beginning.splitlines()), [])
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(header):
        return read_azure(path)
    if {"Timestamp", "Request tokens", "Response tokens"} <= set(header):
        return read_burst_gpt(path)
    if '"hash_ids"' in beginning:
        return read_mooncake(path)
    if '"runs"' in beginning:
        return read_coding_agents(path)
    raise ConfigError(
        f"{path} is no trace that Octavo knows: Mooncake or coding-agent JSON lines, Azure or BurstGPT CSV, ShareGPT "
        f"JSON; or name a generator: {', '.join(GENERATORS)}"
    )


def _generate(name: str, numbers: str) -> Iterator[WorkloadRequest]:
    parameters = inspect.signature(GENERATORS[name]).parameters
    given: dict[str, float] = {}
    for item in filter(None, numbers.split(",")):
        key, _, value = item.partition("=")
        if key not in parameters:
            raise ConfigError(f"{name} has no number {key!r}; it has {', '.join(parameters)}")
        try:
            number = json.loads(value)
        except json.JSONDecodeError:
            number = None
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise ConfigError(f"{name}: {key} must be a number, not {value!r}")
        if number < 0 or (number == 0 and key != "seed"):
            raise ConfigError(f"{name}: {key} must be positive, not {number}")
        if isinstance(parameters[key].default, int) and not isinstance(number, int):
            raise ConfigError(f"{name}: {key} must be a whole number, not {number}")
        given[key] = number
    return GENERATORS[name](**given)


def overlay(requests: Sequence[WorkloadRequest], num_copies: int, seed: int = 0) -> Iterator[WorkloadRequest]:
    """``num_copies`` of a workload at once, as if so many independent groups of users behaved alike.

    Contents of different copies have nothing in common. Copies start up to a minute apart, so that bursts do not
    coincide exactly.
    """
    draw = random.Random(seed)
    ids = [content_id for request in requests for content_id, _ in request.segments]
    ids += [request.output_id for request in requests]
    stride = max(ids, default=0) - min(ids, default=0) + 1

    def copy(number: int, start_s: float) -> Iterator[WorkloadRequest]:
        offset = number * stride
        for request in requests:
            segments = [(content_id + offset, size) for content_id, size in request.segments]
            yield WorkloadRequest(
                f"{request.request_id}#{number}",
                request.arrival_s + start_s,
                segments,
                request.num_output_tokens,
                request.output_id + offset,
                f"{request.session}#{number}" if request.session else "",
                request.text,
            )

    copies = [copy(number, draw.uniform(0, COPY_SPREAD_S) if number else 0.0) for number in range(num_copies)]
    return heapq.merge(*copies, key=lambda request: request.arrival_s)
