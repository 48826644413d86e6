"""The measuring end of a connection: one streamed request, with the time of every event.

While a stream comes in, only its bytes and their times are kept; they are taken apart when it is over. So the client
costs the machine little, which matters where it runs beside the server.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from octavo.errors import ConfigError


@dataclass(slots=True)
class Answer:
    """What came of a request. Times in seconds on the performance counter.

    Attributes:
        status: of HTTP; 0 if there was none.
        error: what went wrong; ``None``: nothing.
        text_s: when each event with new text came.
        num_output_tokens, num_prompt_tokens, num_cached_tokens: as the server counted them.
    """

    started_s: float = 0.0
    ended_s: float = 0.0
    status: int = 0
    error: str | None = None
    text: str = ""
    text_s: list[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """To the first text."""
        return self.text_s[0] - self.started_s

    @property
    def e2e_s(self) -> float:
        """To the last text."""
        return self.text_s[-1] - self.started_s

    @property
    def tpot_s(self) -> float:
        """Per token after the first."""
        return (self.text_s[-1] - self.text_s[0]) / max(self.num_output_tokens - 1, 1)

    @property
    def gaps_s(self) -> list[float]:
        """From text to text."""
        return [after - before for before, after in zip(self.text_s, self.text_s[1:], strict=False)]


class BenchClient:
    """Asks one server.

    Args:
        url: its root, or its ``/v1``.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is no URL of a server, such as http://localhost:8000")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"host": parts.netloc, "content-type": "application/json", "connection": "close"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    async def ask(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Send a streamed request and wait for its end. What goes wrong is in the answer."""
        answer = Answer(started_s=time.perf_counter())
        data = json.dumps(body).encode()
        head = "".join(f"{name}: {value}\r\n" for name, value in self._headers.items())
        head = f"POST {self._root}{path} HTTP/1.1\r\n{head}content-length: {len(data)}\r\n\r\n"
        try:
            loop = asyncio.get_running_loop()
            _, protocol = await loop.create_connection(
                lambda: _Recorder(head.encode() + data), self._host, self._port, ssl=self._ssl
            )
            await protocol.ended
        except OSError as error:
            answer.error = f"no connection: {error.strerror or error}"
            return answer
        answer.ended_s = time.perf_counter()
        try:
            _read_answer(answer, protocol.pieces)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            answer.error = f"the answer is not as OpenAI's servers give it: {type(error).__name__}: {error}"
        return answer


class _Recorder(asyncio.Protocol):
    """Sends the request, and keeps what comes back until the connection closes."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.pieces: list[tuple[float, bytes]] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _read_answer(answer: Answer, pieces: list[tuple[float, bytes]]) -> None:
    raw = b"".join(data for _, data in pieces)
    head, found, body = raw.partition(b"\r\n\r\n")
    if not found:
        answer.error = "the connection closed before an answer came"
        return
    answer.status = int(head.split(b" ", 2)[1])
    is_chunked = b"transfer-encoding: chunked" in head.lower()
    if answer.status != 200:
        text = b"".join(data for _, data in _chunks(body)) if is_chunked else body
        answer.error = f"status {answer.status}: {text.decode(errors='replace'):.200}"
        return
    ends_s = _times(pieces, len(head) + 4)
    is_done, position = False, 0
    events = b""
    for end, data in _chunks(body) if is_chunked else [(len(body), body)]:
        events += data
        *complete, events = events.replace(b"\r\n", b"\n").split(b"\n\n")
        while position < len(ends_s) - 1 and ends_s[position][0] < end:
            position += 1
        for event in complete:
            is_done = _take_event(answer, event, ends_s[position][1]) or is_done
    if answer.error is None and not is_done:
        answer.error = "the stream broke off"
    if answer.error is None and not answer.text_s:
        answer.text_s.append(answer.ended_s)  # an answer without text


def _take_event(answer: Answer, event: bytes, at_s: float) -> bool:
    """Whether it was the last."""
    data = event.partition(b"data:")[2].strip()
    if not data:
        return False
    if data == b"[DONE]":
        return True
    chunk = json.loads(data)
    if "error" in chunk:
        answer.error = f"in the stream: {chunk['error']!s:.200}"
        return False
    for choice in chunk.get("choices", ()):
        text = choice.get("text") or choice.get("delta", {}).get("content") or ""
        if text:
            answer.text += text
            answer.text_s.append(at_s)
    usage = chunk.get("usage")
    if usage:
        answer.num_prompt_tokens = usage["prompt_tokens"]
        answer.num_output_tokens = usage["completion_tokens"]
        answer.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return False


def _times(pieces: list[tuple[float, bytes]], head_bytes: int) -> list[tuple[int, float]]:
    """Body bytes there at the end of each piece, and when."""
    ends_s, position = [], -head_bytes
    for at_s, data in pieces:
        position += len(data)
        ends_s.append((position, at_s))
    return ends_s


def _chunks(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Chunks of a chunked body: where each ends, and its data."""
    position = 0
    while position < len(body):
        line_end = body.index(b"\r\n", position)
        size = int(body[position:line_end].split(b";")[0], 16)
        start = line_end + 2
        position = start + size + 2
        if size:
            yield position, body[start : start + size]
