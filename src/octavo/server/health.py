"""``/health``, ``/ready``, ``/version``, ``/metrics`` and ``/memory``."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

import octavo
from octavo.server.error_handlers import ApiError
from octavo.server.metrics import CONTENT_TYPE
from octavo.server.state import state_of

router = APIRouter(tags=["operation"])


@router.get("/health")
async def health() -> dict[str, str]:
    """Whether this process answers. An engine that died is replaced; that is no reason to restart the server."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request) -> dict[str, Any]:
    """Whether work sent now would move: 503 while there is no engine, while work waits and no step finishes, and
    while the server drains.
    """
    server = state_of(request)
    stalled_s, engine = server.engine.stalled_s(), server.engine
    if server.is_draining:
        raise ApiError(503, "the server is shutting down", code="shutting_down", retry_after_s=5)
    if engine.pid is None:
        raise ApiError(503, "the engine is being replaced", code="engine_restarting", retry_after_s=1)
    if stalled_s > server.settings.stall_s:
        problem = f"{engine.num_unfinished} requests wait and no step has finished for {stalled_s:.1f} s"
        raise ApiError(503, problem, code="stalled", retry_after_s=5)
    return {"status": "ready", "running": engine.num_running, "waiting": engine.num_waiting}


@router.get("/version")
async def version() -> dict[str, str]:
    """Octavo's version."""
    return {"version": octavo.__version__}


@router.get("/memory")
async def memory(request: Request) -> dict[str, Any]:
    """What the KV cache holds now: per request, and cached blocks by age. Needs a key where keys are set."""
    report = dataclasses.asdict(await state_of(request).engine.memory_report())
    ages = report.pop("cached_by_age").items()
    return {**report, "cached_by_age": [{"up_to_s": None if math.isinf(age) else age, "blocks": n} for age, n in ages]}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    return Response(state_of(request).metrics.text(), media_type=CONTENT_TYPE)
