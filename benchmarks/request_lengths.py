"""Lengths of real requests, from a trace.

A trace is gzipped JSON lines with ``input_length`` and ``output_length``, as Mooncake's are: one hour of a production
chat service is ``FAST25-release/traces/conversation_trace.jsonl`` in github.com/kvcache-ai/Mooncake.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RequestLength:
    """Tokens of one request."""

    num_prompt_tokens: int
    num_output_tokens: int

    @property
    def num_tokens(self) -> int:
        """Prompt and output."""
        return self.num_prompt_tokens + self.num_output_tokens

    def scaled(self, prompt_divisor: int, output_divisor: int) -> RequestLength:
        """A shorter request of the same kind, with at least one token on either side."""
        return RequestLength(
            max(self.num_prompt_tokens // prompt_divisor, 1), max(self.num_output_tokens // output_divisor, 1)
        )


def read_lengths(trace: Path) -> list[RequestLength]:
    """All requests of a trace that have a prompt and an output, in order of arrival."""
    return [length for length in _read(trace) if length.num_prompt_tokens > 0 and length.num_output_tokens > 0]


def _read(trace: Path) -> Iterator[RequestLength]:
    with gzip.open(trace, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            yield RequestLength(record["input_length"], record["output_length"])
