"""Connections: how long a peer may take to say what it wants, in how many bytes, and how many peers there may be.

What uvicorn leaves open. A peer that connects and sends nothing, half a head, or half a body after its answer holds a
connection for ``head_timeout_s`` at most; heads are bounded in bytes, pipelined requests in number. When all
connections are taken, the one that has waited longest without a request makes room for the next peer; only if each has
a request under way is the peer refused.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from octavo.server.error_handlers import ApiError
from octavo.server.settings import ServerSettings

MAX_HEAD_BYTES = 64 * 1024
"""Of a request line and its headers."""
MAX_PIPELINED = 16
"""Requests that a peer may send before the one before them has its answer."""
OTHER_FILES = 100
"""Descriptors that the process needs for other things."""


def raise_file_limit(num_connections: int) -> int:
    """Let this process have so many connections, as far as it may; returns how many it can have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return num_connections if soft == resource.RLIM_INFINITY else min(num_connections, soft - OTHER_FILES)


class Connections:
    """Makes connections, as uvicorn's ``http`` protocol class, and knows which of them have no request under way.

    Attributes:
        max_open: so many at once.
        idle: those without a request; the one that has waited longest comes first.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.head_timeout_s = settings.head_timeout_s
        self.max_open = raise_file_limit(settings.max_connections)
        self.idle: dict[Connection, None] = {}
        self.num_open = 0

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> Connection:
        """A connection that uvicorn's server has accepted."""
        return Connection(self, config, server_state, app_state, _loop)

    def make_room(self) -> bool:
        """Whether one more may stay; closes the one that has waited longest if need be."""
        if self.num_open < self.max_open:
            return True
        longest = next(iter(self.idle), None)
        if longest is None:
            return False
        longest.transport.abort()
        longest.leave()
        return True


class Connection(HttpToolsProtocol):
    """One peer."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self._all = connections
        self._is_counted = False
        self._num_head_bytes = 0
        self._is_in_body = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._unanswered: list[RequestResponseCycle] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer has come."""
        super().connection_made(transport)
        if not self._all.make_room():
            self._refuse(ApiError(503, "all connections are taken", code="too_many_connections", retry_after_s=1))
            return
        self._is_counted = True
        self._all.num_open += 1
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        self.leave()
        self._forsake()
        super().connection_lost(exc)

    def leave(self) -> None:
        """It counts no more."""
        self._stop_waiting()
        if self._is_counted:
            self._is_counted = False
            self._all.num_open -= 1

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, and sometimes of the next."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._has_request or self.transport.is_closing():
            return
        if not self._is_in_body:
            self._num_head_bytes += len(data)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._refuse(ApiError(431, f"the request's head has more than {MAX_HEAD_BYTES:,} bytes"))
        elif self._head_timer is None:
            self._wait_for_head()

    def on_message_begin(self) -> None:
        """The first byte of a request. ``scope["state"]["abort"]`` ends its connection, whatever is still unsent."""
        super().on_message_begin()
        self.scope["state"]["abort"] = self.transport.abort

    def on_headers_complete(self) -> None:
        """A request is under way."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError(f"more than {MAX_PIPELINED} requests were sent without waiting for an answer")
        self._stop_waiting()
        self._is_in_body = True
        super().on_headers_complete()
        self._unanswered.append(self.cycle)
        if self.pipeline:  # uvicorn stops reading then, and would not see the peer go
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        """It has come whole."""
        self._is_in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """It has its answer; uvicorn lets the peer be silent for ``timeout_keep_alive`` seconds now."""
        self._unanswered = [cycle for cycle in self._unanswered if not cycle.response_complete]
        super().on_response_complete()
        if self._is_counted and not self._has_request:
            self._all.idle[self] = None

    def send_400_response(self, msg: str) -> None:
        """What has come is no HTTP."""
        self._refuse(ApiError(400, msg))

    def _forsake(self) -> None:
        """Nobody reads the answers any more; uvicorn itself tells only the last of several requests."""
        self.pipeline.clear()
        for cycle in self._unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    @property
    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self._all.head_timeout_s, self._is_late)
        self._all.idle[self] = None

    def _stop_waiting(self) -> None:
        self._num_head_bytes = 0
        self._all.idle.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _is_late(self) -> None:
        self._head_timer = None
        if self._num_head_bytes == 0:  # nothing was asked, so nothing is answered
            self.transport.close()
            return
        problem = f"the request's head did not come within {self._all.head_timeout_s:g} s"
        self._refuse(ApiError(408, problem))

    def _refuse(self, error: ApiError) -> None:
        """Answer without a request, and close."""
        self._forsake()
        body = bytes(error.response().body)
        head = [
            f"HTTP/1.1 {error.status_code} Refused",
            "content-type: application/json",
            f"content-length: {len(body)}",
        ]
        head += [f"{name.lower()}: {value}" for name, value in (error.headers or {}).items()]
        self.transport.write("\r\n".join([*head, "connection: close", "", ""]).encode() + body)
        self.transport.close()
