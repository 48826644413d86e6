"""Request bodies: JSON as the standard has it, and errors that say where it is not."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from octavo.server.error_handlers import ApiError


class StrictRequest(Request):
    """A request whose ``json`` refuses NaN, halves of surrogate pairs and bombs of depth or digits."""

    async def json(self) -> Any:
        """The body. Raises :class:`ApiError` 400."""
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise ApiError(400, f"the body is no valid JSON: {error}") from None


class StrictRoute(APIRoute):
    """A route whose handler gets a :class:`StrictRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Called by FastAPI once for each route."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly
