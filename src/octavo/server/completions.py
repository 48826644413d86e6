"""``/v1/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from octavo.engine.generation import Generation
from octavo.outputs import CompletionOutput
from octavo.server.logprobs import CompletionLogprobs, prompt_logprobs
from octavo.server.pieces import Piece, end_of, stream_pieces, whole_outputs
from octavo.server.protocol import CompletionRequest
from octavo.server.sse import DONE, JSON_OR_EVENTS, EventStream, event_of, until_client_leaves
from octavo.server.state import ServerState, new_id, state_of
from octavo.server.strict_json import StrictRoute
from octavo.server.usage import usage_of

router = APIRouter(route_class=StrictRoute)


@router.post("/v1/completions", tags=["OpenAI"], response_model=None, responses=JSON_OR_EVENTS)
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continue a prompt or several, whole or as a stream of server-sent events."""
    arrival_s = time.monotonic()
    server = state_of(request)
    server.check_model(body.model)
    params = body.sampling_params()
    completion_id = new_id("cmpl")
    server.log_request(completion_id, body)
    prompts = [await _token_ids(server, prompt) for prompt in body.prompts()]
    generations: list[Generation] = []
    try:
        for index, (prompt, token_ids) in enumerate(zip(body.prompts(), prompts, strict=True)):
            generations.append(
                server.submit(
                    request,
                    body,
                    token_ids,
                    params,
                    request_id=f"{completion_id}-{index}",
                    arrival_s=arrival_s,
                    prompt=prompt if isinstance(prompt, str) else None,
                )
            )
    except BaseException:
        for generation in generations:
            server.engine.abort(generation)
        raise
    writer = _ChoiceWriter(server, body)
    head = {"id": completion_id, "object": "text_completion", "created": int(time.time()), "model": server.model_name}
    if body.stream:
        return EventStream(_events(body, generations, head, writer), server.pace, server.settings.send_timeout_s)
    outputs = await until_client_leaves(request, whole_outputs(generations))
    for output in outputs:
        server.log_output(output.request_id, output)
    choices = [
        writer.whole(generation, place * params.n, sample)
        for place, (generation, output) in enumerate(zip(generations, outputs, strict=True))
        for sample in output.outputs
    ]
    usage = usage_of(outputs, generations, only_prompt=body.only_prompt)
    return JSONResponse({**head, "choices": choices, "usage": usage})


async def _token_ids(server: ServerState, prompt: str | list[int]) -> list[int]:
    input_processor = server.engine.text.input_processor
    return await server.off_loop(len(prompt), lambda: input_processor.token_ids(prompt))


async def _events(
    body: CompletionRequest, generations: list[Generation], head: dict[str, Any], writer: _ChoiceWriter
) -> AsyncGenerator[bytes, None]:
    """Text and ends of the choices as they come; then the usage, if asked for, and ``[DONE]``."""
    if body.include_usage:
        head = {**head, "usage": None}
    async for pieces in stream_pieces(generations, body.n or 1):
        choices = [choice for piece in pieces if (choice := writer.piece(piece)) is not None]
        if choices:
            yield b"".join(event_of({**head, "choices": [choice]}) for choice in choices)
    if body.include_usage:
        outputs = [await generation.output() for generation in generations]
        usage = usage_of(outputs, generations, only_prompt=body.only_prompt)
        yield event_of({**head, "choices": [], "usage": usage})
    yield DONE


class _ChoiceWriter:
    """Writes choices, piece by piece; a whole one is a single piece."""

    def __init__(self, server: ServerState, body: CompletionRequest) -> None:
        self._tokenizer = server.engine.text.tokenizer
        self._body = body
        self._logprobs: dict[int, CompletionLogprobs] = {}  # by choice

    def whole(self, generation: Generation, first_choice: int, sample: CompletionOutput) -> dict[str, Any]:
        """A finished choice."""
        finish_reason, stop_reason = end_of(sample.finish_reason, sample.stop_reason)
        piece = Piece(first_choice + sample.index, generation, sample.index, True, sample.text, sample.token_ids)
        piece.logprobs = sample.logprobs or []
        piece.finish_reason, piece.stop_reason = finish_reason, stop_reason
        choice = self.piece(piece)
        assert choice is not None, "a finished choice says at least that"
        if self._body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(generation.group.prompt_logprobs or [])
        return choice

    def piece(self, piece: Piece) -> dict[str, Any] | None:
        """The next piece of a choice; ``None`` if it says nothing new."""
        text, token_ids, candidates, finish_reason = piece.text, piece.token_ids, piece.logprobs, piece.finish_reason
        if self._body.only_prompt:  # the engine generates at least one token
            text, token_ids, candidates, finish_reason = "", [], [], finish_reason and "length"
        with_prompt = piece.is_first and bool(self._body.echo)
        prompt_ids = piece.generation.prompt_token_ids.tolist() if with_prompt else []
        if with_prompt:
            prompt = piece.generation.group.prompt
            text = (self._tokenizer.decode(prompt_ids, skip_special_tokens=False) if prompt is None else prompt) + text
        logprobs = None
        if self._body.logprobs is not None:
            writer = self._logprobs.setdefault(piece.choice, CompletionLogprobs(self._body.logprobs))
            if with_prompt:
                first_token = self._tokenizer.decode(prompt_ids[:1], skip_special_tokens=False)
                writer.take_prompt(prompt_ids, first_token, piece.generation.group.prompt_logprobs or [])
            logprobs = writer.take(token_ids, candidates)
        if not text and not (logprobs and logprobs["tokens"]) and finish_reason is None:
            return None
        return {
            "index": piece.choice,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "stop_reason": piece.stop_reason,
        }
