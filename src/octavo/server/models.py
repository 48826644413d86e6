"""``/v1/models``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from octavo.server.state import ServerState, state_of

router = APIRouter()


@router.get("/v1/models", tags=["OpenAI"])
async def list_models(request: Request) -> dict[str, Any]:
    """The names that requests may give as ``model``."""
    server = state_of(request)
    return {"object": "list", "data": [_model(server, name) for name in server.settings.model_names]}


@router.get("/v1/models/{name:path}", tags=["OpenAI"])
async def get_model(name: str, request: Request) -> dict[str, Any]:
    """One of them."""
    server = state_of(request)
    server.check_model(name)
    return _model(server, name)


def _model(server: ServerState, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": server.created,
        "owned_by": "octavo",
        "root": server.engine.text.model_config.name,
        "max_model_len": server.engine.ready.max_model_len,
    }
