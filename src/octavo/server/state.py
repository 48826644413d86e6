"""What the endpoints of one server share."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request

from octavo.engine.async_engine import AsyncEngine
from octavo.engine.generation import Generation
from octavo.errors import RequestTooLargeError
from octavo.outputs import RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.server.error_handlers import ApiError
from octavo.server.metrics import ServerMetrics
from octavo.server.protocol import RequestFields
from octavo.server.settings import ServerSettings
from octavo.server.sse import Pace

T = TypeVar("T")

INLINE_CHARACTERS = 4096
"""Shorter texts are tokenised in the event loop: it takes less than handing them to a thread."""

_logger = logging.getLogger(__name__)


class ServerState:
    """The engine and what stands around it.

    Attributes:
        is_draining: no new work is taken.
        pace: of all streams.
        created: when the model came up, seconds since 1970.
    """

    def __init__(self, settings: ServerSettings, engine: AsyncEngine, metrics: ServerMetrics) -> None:
        self.settings = settings
        self.engine = engine
        self.metrics = metrics
        self.is_draining = False
        self.pace = Pace()
        self.created = int(time.time())
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tokenize")

    @property
    def model_name(self) -> str:
        """The name in answers."""
        return self.settings.model_names[0]

    def check_model(self, name: str | None) -> None:
        """Raises :class:`ApiError` 404 for a name that is not served."""
        if name is not None and name not in self.settings.model_names:
            served = ", ".join(self.settings.model_names)
            raise ApiError(
                404, f"there is no model {name!r:.100}; served is {served}", param="model", code="model_not_found"
            )

    async def off_loop(self, num_characters: int, work: Callable[[], T]) -> T:
        """Do ``work`` on a text of this length without holding up the streams."""
        if num_characters <= INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def submit(
        self,
        request: Request,
        body: RequestFields,
        token_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        arrival_s: float,
        prompt: str | None = None,
    ) -> Generation:
        """Hand a prompt to the engine for the tenant who asks."""
        limit = self.settings.max_prompt_tokens
        if limit is not None and len(token_ids) > limit:
            raise RequestTooLargeError(
                f"the prompt has {len(token_ids)} tokens and the server's limit is {limit}; "
                f"shorten the prompt by {len(token_ids) - limit}"
            )
        return self.engine.submit(
            request_id,
            token_ids,
            params,
            prompt=prompt,
            arrival_s=arrival_s,
            priority=body.priority,
            cache_salt=body.cache_salt,
            tenant=request.scope["state"]["tenant"],
            deadline_s=body.deadline,
            wants_deltas=bool(body.stream),
        )

    def log_request(self, request_id: str, body: RequestFields) -> None:
        """Only where the operator asked for it."""
        if self.settings.log_requests:
            _logger.info("%s asks %s", request_id, body.model_dump_json(exclude_unset=True))

    def log_output(self, request_id: str, output: RequestOutput) -> None:
        """Only where the operator asked for it."""
        if self.settings.log_requests:
            texts = [sample.text for sample in output.outputs]
            _logger.info("%s gets %s", request_id, json.dumps(texts, ensure_ascii=False))

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def state_of(request: Request) -> ServerState:
    """The state of the server that handles ``request``."""
    state: ServerState = request.app.state.server
    return state


def new_id(prefix: str) -> str:
    """A request's id, as OpenAI's look."""
    return f"{prefix}-{secrets.token_hex(12)}"
