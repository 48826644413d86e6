"""Public traces as workloads. Every reader yields :class:`WorkloadRequest`, sorted by arrival.

=============  ==============================================================  ========================================
kind           file                                                            prefixes
=============  ==============================================================  ========================================
Mooncake       JSON lines: timestamp (ms), input_length, output_length,        ids of 512-token blocks
               hash_ids
coding agents  JSON lines, one per session: block, tool, requests with t (s),  ids of 64-token blocks, as runs, local
               in, out, runs                                                   to the session
Azure          CSV: TIMESTAMP, ContextTokens, GeneratedTokens                  none
BurstGPT       CSV: Timestamp (s), Request tokens, Response tokens             none
ShareGPT       JSON: conversations of human and gpt turns, without times       each turn repeats the ones before
=============  ==============================================================  ========================================

A trace names the contents of prompts, not of answers: an answer gets a content id of its own (negative), which no
later prompt repeats, except in ShareGPT, where the answers are known.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import chain, count, pairwise, repeat
from pathlib import Path
from typing import IO, Any

from octavo.errors import ConfigError
from octavo.simulator.workload import Segment, WorkloadRequest

MOONCAKE_BLOCK = 512
CHARACTERS_PER_TOKEN = 4
"""Of English text, about; for ShareGPT where no tokenizer is given."""


def open_trace(path: Path) -> IO[str]:
    """A text file, also a gzipped one. Raises :class:`ConfigError` if there is none."""
    if not path.is_file():
        raise ConfigError(f"there is no trace file {path}")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def read_mooncake(path: Path) -> Iterator[WorkloadRequest]:
    """Mooncake's JSON lines (FAST '25)."""
    for number, row in _json_lines(path):
        try:
            arrival_s, num_prompt = row["timestamp"] / 1000, int(row["input_length"])
            ids, num_output = row["hash_ids"], int(row["output_length"])
        except (KeyError, TypeError, ValueError) as error:
            raise _fault(path, number, error) from error
        if len(ids) != -(-num_prompt // MOONCAKE_BLOCK) or num_output < 1 or num_prompt < 1:
            raise ConfigError(f"{path}, line {number}: {num_prompt} tokens in {len(ids)} blocks of {MOONCAKE_BLOCK}")
        yield WorkloadRequest(f"m{number}", arrival_s, _blocks(ids, MOONCAKE_BLOCK, num_prompt), num_output, -number)


def read_coding_agents(path: Path, window_s: float = 6 * 3600.0, seed: int = 1) -> Iterator[WorkloadRequest]:
    """Coding-agent sessions, served together.

    Their times are relative to a session's start; the starts are drawn uniformly from ``window_s``. Sessions whose
    tool definitions have equal length are taken to share them, for ids say nothing across sessions.
    """
    draw = random.Random(seed)
    ids: dict[tuple[Any, ...], int] = {}
    rows: list[tuple[float, str, int, list[Segment]]] = []
    for number, session in _json_lines(path):
        start_s = draw.uniform(0, window_s)
        try:
            block, num_shared = int(session["block"]), session["tool"] // session["block"]
            for turn in session["requests"]:
                blocks = chain.from_iterable(range(first, first + length) for first, length in turn["runs"])
                keys = (
                    ("tools", session["tool"], index) if index < num_shared else (session["id"], block_id)
                    for index, block_id in enumerate(blocks)
                )
                named = [ids.setdefault(key, len(ids)) for key in keys]
                num_prompt = max(int(turn["in"]), 1)
                segments = _blocks(named[: -(-num_prompt // block)], block, num_prompt)
                num_rest = num_prompt - sum(size for _, size in segments)
                if num_rest > 0:  # the ids name whole blocks only
                    segments.append((ids.setdefault((session["id"], "rest", len(rows)), len(ids)), num_rest))
                rows.append((start_s + turn["t"], session["id"], max(int(turn["out"]), 1), segments))
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise _fault(path, number, error) from error
    rows.sort(key=lambda row: row[0])
    for number, (arrival_s, session_id, num_output, segments) in enumerate(rows, 1):
        yield WorkloadRequest(f"a{number}", arrival_s, segments, num_output, -number, session_id)


def read_azure(path: Path) -> Iterator[WorkloadRequest]:
    """Azure's LLM inference traces (2023, 2024)."""

    def seconds(text: str) -> float:
        whole, _, fraction = text.replace("Z", "").partition("+")[0].partition(".")
        return datetime.fromisoformat(whole).timestamp() + (float(f"0.{fraction}") if fraction else 0.0)

    return _read_lengths(path, "z", seconds, "TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_burst_gpt(path: Path) -> Iterator[WorkloadRequest]:
    """BurstGPT (2024). Requests without an answer failed; they are left out."""
    return _read_lengths(path, "b", float, "Timestamp", "Request tokens", "Response tokens")


def read_share_gpt(
    path: Path, rate: float, seed: int = 1, count_tokens: Callable[[str], int] | None = None
) -> Iterator[WorkloadRequest]:
    """ShareGPT conversations, a request for each answer; arrivals are Poisson with ``rate`` per second.

    Args:
        count_tokens: the length of a text; by default a token for four characters.
    """
    draw, next_id, numbers, arrival_s = random.Random(seed), count(), count(1), 0.0
    with open_trace(path) as file:
        try:
            conversations = [entry["conversations"] for entry in json.load(file)]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is not ShareGPT's JSON: {error!r}") from error
    length = count_tokens or (lambda text: max(len(text) // CHARACTERS_PER_TOKEN, 1))
    for session, turns in enumerate(conversations):
        history: list[Segment] = []
        texts: list[str] = []
        for question, answer in pairwise(turns):
            if question.get("from") not in ("human", "user") or answer.get("from") not in ("gpt", "assistant"):
                continue
            texts.append(question["value"])
            history.append((next(next_id), length(question["value"])))
            arrival_s += draw.expovariate(rate)
            output = (next(next_id), length(answer["value"]))
            name, text = f"s{next(numbers)}", "\n\n".join(texts)
            yield WorkloadRequest(name, arrival_s, tuple(history), output[1], output[0], str(session), text)
            texts.append(answer["value"])
            history.append(output)


# ---- parts ----------------------------------------------------------------------------------------------------------


def _blocks(ids: list[int], block: int, num_tokens: int) -> list[Segment]:
    """Ids as segments of ``block`` tokens, ``num_tokens`` at most together."""
    segments = list(zip(ids, repeat(block)))
    excess = len(ids) * block - num_tokens
    if excess > 0:
        segments[-1] = (segments[-1][0], block - excess)
    return segments


def _read_lengths(
    path: Path, prefix: str, seconds: Callable[[str], float], time: str, prompt: str, output: str
) -> Iterator[WorkloadRequest]:
    """A CSV that knows when and how much, but not what."""
    rows: list[tuple[float, int, int]] = []
    with open_trace(path) as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                rows.append((seconds(row[time]), int(float(row[prompt])), int(float(row[output]))))
            except (KeyError, TypeError, ValueError) as error:
                raise _fault(path, number, error) from error
    rows.sort()
    for number, (arrival_s, num_prompt, num_output) in enumerate(rows, 1):
        if num_prompt > 0 and num_output > 0:
            segments = ((number, num_prompt),)
            yield WorkloadRequest(f"{prefix}{number}", arrival_s - rows[0][0], segments, num_output, -number)


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    with open_trace(path) as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise _fault(path, number, error) from error


def _fault(path: Path, number: int, error: Exception) -> ConfigError:
    return ConfigError(f"{path}, line {number}: {type(error).__name__}: {error}")
