"""Answers that come in pieces, and clients that leave before they have them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from fastapi.responses import Response
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from octavo.server.error_handlers import ClientLeftError, api_error

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

JSON_OR_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One JSON object, or with `stream` an event for each piece",
        "content": {"application/json": {"schema": {}}, "text/event-stream": {}},
    }
}
"""What the API page says of an endpoint that can stream."""

MAX_EVENTS_PER_S = 2000
"""Of all streams together: each event is a system call and a wake-up of the client, which a fast engine feels."""


class Pace:
    """Keeps streams from taking the machine away from the engine.

    While few tokens come, each is an event of its own. Beyond :data:`MAX_EVENTS_PER_S`, every stream waits for its
    share of time between two events, and what comes meanwhile goes out together: at 32 streams that is 16 ms.
    """

    def __init__(self) -> None:
        self.num_streams = 0

    async def keep(self, last_s: float) -> None:
        """Wait until a stream whose last event was at ``last_s``, on the loop's clock, may send the next."""
        early_s = last_s + self.num_streams / MAX_EVENTS_PER_S - asyncio.get_running_loop().time()
        if early_s > 0:
            await asyncio.sleep(early_s)


class EventStream(Response):
    """Server-sent events.

    The status is sent with the first event, so a request that fails before its first token has a status that says so;
    later, the failure is an event of its own, and ``[DONE]`` does not come. However the stream ends, its generator is
    closed, which ends the request.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], pace: Pace, send_timeout_s: float) -> None:
        super().__init__()
        self._events = events
        self._pace = pace
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end, or until the client leaves or takes nothing for too long."""
        self._pace.num_streams += 1
        try:
            await race_with_departure(receive, self._send_all(scope, send))
        except ClientLeftError:
            await _departure(receive)  # or uvicorn, which may not know yet, would miss the end of the answer
        finally:
            self._pace.num_streams -= 1
            await self._events.aclose()

    async def _send_all(self, scope: Scope, send: Send) -> None:
        is_started, last_s = False, 0.0
        try:
            async for event in self._events:
                if not is_started:
                    is_started = True
                    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                await self._pace.keep(last_s)
                last_s = asyncio.get_running_loop().time()
                await self._send(scope, send, event, more=True)
        except Exception as error:
            if not is_started or isinstance(error, ClientLeftError):
                raise
            await self._send(scope, send, event_of(api_error(error).body()), more=True)
        await self._send(scope, send, b"", more=False)

    async def _send(self, scope: Scope, send: Send, body: bytes, *, more: bool) -> None:
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            scope["state"]["abort"]()
            raise ClientLeftError from None


async def until_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do ``work``; cancel it if the client leaves. Raises :class:`ClientLeftError` then."""
    return await race_with_departure(request.receive, work)


async def race_with_departure(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do ``work``; cancel it and raise :class:`ClientLeftError` if ``receive`` says that the client has left."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_departure(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeftError
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def event_of(data: object) -> bytes:
    """One event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n\n"


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
