"""One request under way, as its caller sees it."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from octavo.engine.blame import Blame
from octavo.engine.messages import AddRequest
from octavo.engine.output_processor import RequestGroup
from octavo.errors import OctavoError
from octavo.outputs import CompletionDelta, RequestOutput


class Generation:
    """Iterate over its deltas, or wait for its output; leave its context to end it, wherever it stands.

    Attributes:
        request_id: the caller's name for it.
        waited_for: why it did not run at once; ``None``: it did, or has not run yet.
        num_replays: engine processes that died under it.
    """

    def __init__(
        self,
        message: AddRequest,
        group: RequestGroup,
        abort: Callable[[Generation], None],
        *,
        wants_deltas: bool,
    ) -> None:
        """The engine makes it; ``wants_deltas``: whether the caller will iterate, or only wait for the whole."""
        self.request_id = group.request_id
        self.message = message
        self.group = group
        self.blame = Blame()
        self.is_sent = False
        self.waited_for: str | None = None
        self.num_replays = 0
        self._abort = abort
        self._wants_deltas = wants_deltas
        self._deltas: list[CompletionDelta] = []
        self._output: RequestOutput | None = None
        self._error: OctavoError | None = None
        self._wake: asyncio.Future[None] | None = None

    @property
    def prompt_token_ids(self) -> array[int]:
        """The prompt's tokens, 32-bit."""
        first = self.group.samples[0].request
        return first.token_ids[: first.num_prompt_tokens]

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._output is None and self._error is None:
            self._abort(self)

    async def output(self) -> RequestOutput:
        """Wait for the whole. Raises :class:`OctavoError` if there will be none."""
        while self._output is None:
            await self._news()
        return self._output

    async def __aiter__(self) -> AsyncIterator[list[CompletionDelta]]:
        """What came since the caller last looked, at least one delta. The last one has the whole output."""
        while True:
            while not self._deltas:
                await self._news()
            deltas, self._deltas = self._deltas, []
            yield deltas
            if deltas[-1].output is not None:
                return

    def put(self, delta: CompletionDelta) -> None:
        """The engine has something new."""
        if delta.output is not None:
            self._output = delta.output
        if self._wants_deltas:
            self._deltas.append(delta)
        if self._wants_deltas or delta.output is not None:
            self._notify()

    def fail(self, error: OctavoError) -> None:
        """There will be no output."""
        self._error = error
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _news(self) -> None:
        if self._error is not None:
            raise self._error
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake
        if self._error is not None and not self._deltas:
            raise self._error
