"""Every failure in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from octavo.errors import (
    ChatTemplateError,
    EngineDownError,
    EngineError,
    OctavoError,
    QueueFullError,
    RequestError,
)

_logger = logging.getLogger(__name__)

MAX_MESSAGE_CHARACTERS = 1000
CLIENT_LEFT = 499
"""A status for logs only."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class FailureDetails(BaseModel):
    """What went wrong."""

    message: str = Field(description="What is wrong and what to change.")
    type: str
    param: str | None = Field(description="The field that is wrong.")
    code: str | None = Field(description="A word for programs.")


class Failure(BaseModel):
    """The body of every answer that is none, in OpenAI's shape."""

    error: FailureDetails


class ClientLeftError(Exception):
    """Nobody is there to read the answer."""


class ApiError(HTTPException):
    """A failure with its HTTP status.

    Attributes:
        param: the field that is wrong.
        code: a word for programs.
    """

    def __init__(
        self,
        status_code: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        close: bool = False,
    ) -> None:
        headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        if close:
            headers["Connection"] = "close"
        super().__init__(status_code, message, headers)
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """As OpenAI's clients read it."""
        kind = _TYPES.get(self.status_code, "invalid_request_error" if self.status_code < 500 else "server_error")
        message = self.detail[:MAX_MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body(), self.status_code, self.headers)


def api_error(error: Exception) -> ApiError:
    """The HTTP status of a failure."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        found = ApiError(error.status_code, str(error.detail))
        found.headers = {**(error.headers or {})}  # such as Allow
        return found
    if isinstance(error, RequestValidationError):
        return _invalid_fields(error)
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), code="queue_full", retry_after_s=1)
    if isinstance(error, (RequestError, ChatTemplateError)):
        return ApiError(400, str(error))
    if isinstance(error, EngineDownError):
        return ApiError(503, str(error), code="engine_down", retry_after_s=5)
    if isinstance(error, EngineError):
        return ApiError(500, str(error), code="engine_failed")
    if isinstance(error, OctavoError):
        return ApiError(500, str(error))
    _logger.error("a fault of Octavo itself", exc_info=error)
    return ApiError(500, f"a fault of Octavo itself: {type(error).__name__}; the server's log says more")


def add_error_handlers(app: FastAPI) -> None:
    """Answer every exception in the one shape."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        return api_error(error).response()

    async def forget(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_LEFT)

    app.add_exception_handler(ClientLeftError, forget)
    for kind in (HTTPException, RequestValidationError, OctavoError, Exception):
        app.add_exception_handler(kind, answer)


def _invalid_fields(error: RequestValidationError) -> ApiError:
    """The first few problems; what the caller sent is not repeated."""
    if isinstance(error.body, bytes):
        return ApiError(400, "the body must be JSON, sent with the header Content-Type: application/json")
    problems, param = [], None
    for problem in error.errors()[:3]:
        place = [str(part)[:80] for part in problem["loc"] if part != "body"]
        field = ".".join(place)
        param = param or (place[0] if place else None)
        if problem["type"] == "extra_forbidden":
            problems.append(f"unknown field {field}")
        elif problem["type"] == "value_error":
            problems.append(str(problem["ctx"]["error"]))
        else:
            problems.append(f"{field}: {problem['msg']}" if field else f"the body: {problem['msg']}")
    return ApiError(400, "; ".join(problems), param=param)
