"""The application: endpoints, middleware and error handlers put together."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

import octavo
from octavo.engine.async_engine import AsyncEngine
from octavo.server import chat, completions, health, models, tokenize
from octavo.server.error_handlers import Failure, add_error_handlers
from octavo.server.gate import Gate
from octavo.server.metrics import ServerMetrics
from octavo.server.settings import ServerSettings
from octavo.server.state import ServerState


def create_app(settings: ServerSettings, engine: AsyncEngine) -> FastAPI:
    """An ASGI application over a started engine. Its :class:`ServerState` is ``app.state.server``."""
    app = FastAPI(
        title="Octavo",
        version=octavo.__version__,
        description="An OpenAI-compatible server over a paged KV cache.",
        responses={status: {"model": Failure} for status in ("4XX", "5XX")},
    )
    metrics = ServerMetrics(engine)
    engine.observer = metrics
    state = app.state.server = ServerState(settings, engine, metrics)
    for endpoints in (chat, completions, models, tokenize, health):
        app.include_router(endpoints.router)
    add_error_handlers(app)
    app.add_middleware(Gate, state=state)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["*"], allow_headers=["*"]
        )
    return app
