"""What crosses the boundary between the server's process and the engine's.

    server → engine    AddRequest, FinishRequest, ReportMemory
    engine → server    Ready or StartFailed, once;  then Refused, StepDone, EngineStats when nothing is left to do,
                       and a MemoryReport for each ReportMemory

Each message is pickled and preceded by its length: both ends are this program, over a socket that nobody else has.
Whatever grows with the prompt or with the number of streams travels as bytes of an array.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from octavo.config import EngineConfig
from octavo.kvcache.report import MemoryReport
from octavo.sampling_params import SamplingParams
from octavo.scheduler.output import TokenLogprobs

_LENGTH = struct.Struct("<I")
_RECEIVE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class StartEngine:
    """The first message to a new process: what to build."""

    config: EngineConfig


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a request.

    Attributes:
        number: its name on both sides.
        seed: of its draws.
        output_token_ids: int32; what it has generated already, in a process that died.
    """

    number: int
    seed: int
    output_token_ids: bytes = b""


@dataclass(frozen=True, slots=True)
class AddRequest:
    """A prompt and the samples to draw for it.

    Attributes:
        prompt_token_ids: int32.
        arrival_s, deadline_s: seconds on the machine's monotonic clock.
        first_scheduled_s: when it first ran, in a process that died.
    """

    samples: tuple[Sample, ...]
    prompt_token_ids: bytes
    params: SamplingParams
    eos_token_ids: frozenset[int]
    priority: int
    cache_salt: str | None
    tenant: str
    arrival_s: float
    deadline_s: float
    first_scheduled_s: float | None


@dataclass(frozen=True, slots=True)
class FinishRequest:
    """End a sample. Unknown and ended numbers are ignored."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReportMemory:
    """Tell what the KV cache holds; requests are named by their numbers."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine is built."""

    max_model_len: int
    num_blocks: int
    block_size: int
    kv_cache_bytes: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The engine cannot be built.

    Attributes:
        error: name of a class in :mod:`octavo.errors`; other names are faults of our own.
    """

    error: str
    message: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A request was not taken in; none of its samples exists."""

    number: int
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """What changed about a sample besides its tokens.

    Attributes:
        waited_for: why it did not run in the first step after it came: ``slots`` (``max_num_seqs`` were running),
            ``token_budget`` (the step was full) or ``blocks`` (the KV cache was); ``None``: it did run.
    """

    number: int
    first_scheduled_s: float | None
    num_cached_tokens: int
    num_preemptions: int
    num_recomputed_tokens: int
    waited_for: str | None


@dataclass(frozen=True, slots=True)
class SampleEnd:
    """A sample ended by itself, or because its time was up."""

    number: int
    reason: str
    stop_token_id: int | None
    num_blocks: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges, and counters since the process started (see :class:`octavo.scheduler.stats.SchedulerStats`)."""

    step_s: float
    num_running: int
    num_waiting: int
    num_blocks_cached: int
    num_blocks_held: int
    num_steps: int
    num_preemptions: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_recomputed_tokens: int
    num_evictions: int
    num_breaches: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """One step.

    Attributes:
        numbers: int64; the samples that got a token.
        token_ids: int32; beside ``numbers``.
        logprobs: by index into ``numbers``.
        prompt_logprobs: by number: those of consecutive prompt tokens, and the position of the first.
    """

    numbers: bytes
    token_ids: bytes
    logprobs: dict[int, TokenLogprobs]
    prompt_logprobs: dict[int, tuple[int, list[TokenLogprobs]]]
    facts: tuple[SampleFacts, ...]
    ends: tuple[SampleEnd, ...]
    stats: EngineStats


ToEngine = StartEngine | AddRequest | FinishRequest | ReportMemory
FromEngine = Ready | StartFailed | Refused | StepDone | EngineStats | MemoryReport


def encode(message: ToEngine | FromEngine) -> bytes:
    """The message with its length before it."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class MessageBuffer:
    """Puts messages together from pieces of a byte stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[object]:
        """Take the next piece; yields the messages that it completes."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            end = start + _LENGTH.size + _LENGTH.unpack_from(buffer, start)[0]
            if len(buffer) < end:
                break
            message = pickle.loads(memoryview(buffer)[start + _LENGTH.size : end].tobytes())
            start = end
            yield message
        del buffer[:start]


class EngineChannel:
    """The engine's end: blocking, between steps."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._poll = select.poll()  # select() knows no descriptor above 1,023, and a server has many
        self._poll.register(connection, select.POLLIN)
        self._buffer = MessageBuffer()

    def receive(self, wait_s: float | None) -> list[object] | None:
        """What has come; if nothing has, what comes within ``wait_s``. ``None``: the server is gone.

        The list is empty when nothing came, or only a piece of a message.
        """
        if not self._poll.poll(None if wait_s is None else wait_s * 1000):
            return []
        try:
            data = self._connection.recv(_RECEIVE_BYTES)
        except ConnectionError:
            return None
        return list(self._buffer.feed(data)) if data else None

    def send(self, message: FromEngine) -> None:
        """Send; if the server is gone, the next :meth:`receive` says so."""
        with contextlib.suppress(ConnectionError):
            self._connection.sendall(encode(message))
