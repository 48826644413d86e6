"""What every request passes first: keys, size and time of its body, and whether new work is taken at all."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.error_handlers import ApiError
from octavo.server.state import ServerState

OPEN_PATHS = frozenset({"/health", "/ready", "/version", "/metrics", "/docs", "/redoc", "/openapi.json"})
"""Need no key, and are answered while the server drains."""


class Gate:
    """ASGI middleware. Leaves the tenant in ``scope["state"]``."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it here."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(headers)
        if refusal is not None:
            await refusal.response()(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = self._state.settings.api_keys.tenant(headers.get("authorization"))
        await self._app(scope, _LimitedBody(receive, self._state), send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        if self._state.settings.api_keys.tenant(headers.get("authorization")) is None:
            return ApiError(401, "the API key is missing or wrong", code="invalid_api_key", close=True)
        if self._state.is_draining:
            problem = "the server is shutting down and takes no new work"
            return ApiError(503, problem, code="shutting_down", retry_after_s=5, close=True)
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length[:20]) > self._state.settings.max_body_bytes:
            return body_too_large(self._state.settings.max_body_bytes)
        return None


class _LimitedBody:
    """``receive`` that counts the bytes and looks at the clock until the body is complete."""

    def __init__(self, receive: Receive, state: ServerState) -> None:
        self._receive = receive
        self._max_bytes = state.settings.max_body_bytes
        self._timeout_s = state.settings.body_timeout_s
        self._num_bytes = 0
        self._is_complete = False
        self._late_at_s = asyncio.get_running_loop().time() + self._timeout_s

    async def __call__(self) -> Message:
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._late_at_s):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(408, f"the body did not come within {self._timeout_s:g} s", close=True) from None
        if message["type"] == "http.request":
            self._num_bytes += len(message.get("body", b""))
            if self._num_bytes > self._max_bytes:
                raise body_too_large(self._max_bytes)
            self._is_complete = not message.get("more_body", False)
        return message


def body_too_large(max_bytes: int) -> ApiError:
    """413."""
    return ApiError(413, f"the body has more than {max_bytes:,} bytes, the server's limit", close=True)
