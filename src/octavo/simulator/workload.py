"""What users ask: when, how much, and what they have in common with what was asked before.

Traces hide the text and tell the structure: equal ids mean equal contents. So a prompt is a list of segments, each an
id and a number of tokens; an id stands for the same tokens wherever it occurs::

    prompt of turn 1    [system 1000][question 57]
    prompt of turn 2    [system 1000][question 57][answer 210][question 33]      shares 1267 tokens with turn 1

An id names a whole prefix: it occurs after one prefix only (what readers and generators here guarantee). That lets a
router follow prefixes by ids alone.
"""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

Segment = tuple[int, int]
"""Content id, number of tokens."""

_pack = struct.Struct("=i").pack


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request of a workload.

    Attributes:
        arrival_s: seconds since the start of the workload; requests come sorted by it.
        segments: the prompt.
        num_output_tokens: how long the answer was.
        output_id: content id of the answer, unique, for later prompts to repeat it.
        session: whose conversation it belongs to; empty if the source does not tell.
        text: the prompt itself, where the source has it.
    """

    request_id: str
    arrival_s: float
    segments: Sequence[Segment]
    num_output_tokens: int
    output_id: int
    session: str = ""
    text: str | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all segments."""
        return sum([count for _, count in self.segments])

    def stand_in_token_ids(self) -> array[int]:
        """The prompt for a simulation: each token is the id of its segment. Equal prefixes have equal tokens."""
        tokens = array("i")
        tokens.frombytes(b"".join([_pack(content_id) * count for content_id, count in self.segments]))
        return tokens

    def token_ids(self, vocab_size: int) -> list[int]:
        """The prompt for a real server: pseudo-random tokens, the same for the same id, below ``vocab_size``."""
        tokens: list[int] = []
        for content_id, count in self.segments:
            tokens += random.Random(content_id & 0xFFFFFFFF).choices(range(vocab_size), k=count)
        return tokens


def scale_rate(requests: Iterable[WorkloadRequest], factor: float) -> Iterator[WorkloadRequest]:
    """The same requests, ``factor`` times as fast after one another."""
    for request in requests:
        yield replace(request, arrival_s=request.arrival_s / factor)
