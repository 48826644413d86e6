"""What answers of both endpoints are made of: deltas put together, ends in OpenAI's words, several prompts at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from octavo.engine.generation import Generation
from octavo.errors import OctavoError
from octavo.outputs import CompletionDelta, Logprob, RequestOutput
from octavo.server.error_handlers import ApiError


@dataclass(slots=True)
class Piece:
    """What one choice gained since the last look.

    Attributes:
        choice: its index in the answer.
        generation: whose sample it is; ``sample`` is its index there.
        logprobs: beside ``token_ids``; empty unless asked for.
        is_first: nothing of the choice came before.
    """

    choice: int
    generation: Generation
    sample: int
    is_first: bool
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


async def stream_pieces(generations: Sequence[Generation], num_samples: int) -> AsyncGenerator[list[Piece], None]:
    """The pieces of all choices, as they come. Ends all requests when it is closed.

    Choice ``p * num_samples + s`` is sample ``s`` of prompt ``p``.

    Raises:
        ApiError: the time was up before the first token.
        OctavoError: the engine gave a request up.
    """
    started: set[int] = set()
    with ExitStack() as stack:
        for generation in generations:
            stack.enter_context(generation)
        async for place, deltas in _deltas_of_all(generations):
            pieces: dict[int, Piece] = {}
            for delta in deltas:
                choice = place * num_samples + delta.index
                if delta.finish_reason == "timeout" and not delta.token_ids and not started and not pieces:
                    raise timeout_error(generations[place])
                if choice not in pieces:
                    pieces[choice] = Piece(choice, generations[place], delta.index, choice not in started)
                _append(pieces[choice], delta)
            started.update(pieces)
            yield list(pieces.values())


async def whole_outputs(generations: Sequence[Generation]) -> list[RequestOutput]:
    """The outputs of all; if one fails, the others end. Raises as :func:`stream_pieces`."""
    with ExitStack() as stack:
        for generation in generations:
            stack.enter_context(generation)
        outputs = [await generation.output() for generation in generations]
    for generation, output in zip(generations, outputs, strict=True):
        if all(sample.finish_reason == "timeout" and not sample.token_ids for sample in output.outputs):
            raise timeout_error(generation)
    return outputs


def end_of(finish_reason: str | None, stop_reason: str | int | None) -> tuple[str | None, str | int | None]:
    """``finish_reason`` in OpenAI's words. A deadline is a limit of length; ``stop_reason`` says which."""
    return ("length", "timeout") if finish_reason == "timeout" else (finish_reason, stop_reason)


def timeout_error(generation: Generation) -> ApiError:
    """The time was up before anything was generated: the caller's time, or that of the queue."""
    if time.monotonic() >= generation.message.deadline_s:
        return ApiError(408, "the deadline passed before the first token", param="deadline_s", code="deadline_exceeded")
    problem = "the request waited longer than the server lets requests wait (max_queue_time_s); try again later"
    return ApiError(503, problem, code="queue_timeout", retry_after_s=2)


def _append(piece: Piece, delta: CompletionDelta) -> None:
    piece.text += delta.text
    piece.token_ids += delta.token_ids
    piece.logprobs += delta.logprobs or []
    if delta.finish_reason is not None:
        piece.finish_reason, piece.stop_reason = end_of(delta.finish_reason, delta.stop_reason)


async def _deltas_of_all(
    generations: Sequence[Generation],
) -> AsyncGenerator[tuple[int, list[CompletionDelta]], None]:
    if len(generations) == 1:
        async for deltas in generations[0]:
            yield 0, deltas
        return
    queue: asyncio.Queue[tuple[int, list[CompletionDelta] | OctavoError]] = asyncio.Queue()

    async def collect(place: int) -> None:
        try:
            async for deltas in generations[place]:
                queue.put_nowait((place, deltas))
        except OctavoError as error:
            queue.put_nowait((place, error))

    collecting = [asyncio.ensure_future(collect(place)) for place in range(len(generations))]
    try:
        num_open = len(generations)
        while num_open:
            place, news = await queue.get()
            if isinstance(news, OctavoError):
                raise news
            num_open -= news[-1].output is not None
            yield place, news
    finally:
        for task in collecting:
            task.cancel()
