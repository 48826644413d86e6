"""``/v1/chat/completions``."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from octavo.engine.generation import Generation
from octavo.outputs import CompletionOutput
from octavo.server.logprobs import chat_logprobs
from octavo.server.pieces import Piece, end_of, stream_pieces, whole_outputs
from octavo.server.protocol import ChatCompletionRequest, Message
from octavo.server.sse import DONE, JSON_OR_EVENTS, EventStream, event_of, until_client_leaves
from octavo.server.state import ServerState, new_id, state_of
from octavo.server.strict_json import StrictRoute
from octavo.server.usage import usage_of

router = APIRouter(route_class=StrictRoute)


@router.post("/v1/chat/completions", tags=["OpenAI"], response_model=None, responses=JSON_OR_EVENTS)
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    arrival_s = time.monotonic()
    server = state_of(request)
    server.check_model(body.model)
    params = body.sampling_params()
    request_id = new_id("chatcmpl")
    server.log_request(request_id, body)
    token_ids = await chat_token_ids(server, body.messages)
    generation = server.submit(request, body, token_ids, params, request_id=request_id, arrival_s=arrival_s)
    head = {"id": request_id, "object": "chat.completion", "created": int(time.time()), "model": server.model_name}
    if body.stream:
        head["object"] = "chat.completion.chunk"
        return EventStream(_events(body, generation, head), server.pace, server.settings.send_timeout_s)
    (output,) = await until_client_leaves(request, whole_outputs([generation]))
    server.log_output(request_id, output)
    choices = [_choice(body, sample) for sample in output.outputs]
    return JSONResponse({**head, "choices": choices, "usage": usage_of([output], [generation])})


async def chat_token_ids(
    server: ServerState, messages: list[Message], *, add_generation_prompt: bool = True
) -> list[int]:
    """A conversation through the model's chat template."""
    tokenizer = server.engine.text.tokenizer
    templated = [message.for_template() for message in messages]
    num_characters = sum(len(str(message["content"])) for message in templated)

    def render_and_encode() -> list[int]:
        return tokenizer.encode(tokenizer.render_chat(templated, add_generation_prompt=add_generation_prompt))

    return await server.off_loop(num_characters, render_and_encode)


def _choice(body: ChatCompletionRequest, sample: CompletionOutput) -> dict[str, Any]:
    finish_reason, stop_reason = end_of(sample.finish_reason, sample.stop_reason)
    logprobs = None
    if sample.logprobs is not None:
        logprobs = chat_logprobs(sample.token_ids, sample.logprobs, body.top_logprobs or 0)
    return {
        "index": sample.index,
        "message": {"role": "assistant", "content": sample.text, "refusal": None},
        "logprobs": logprobs,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
    }


async def _events(
    body: ChatCompletionRequest, generation: Generation, head: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    """For each choice: its role, its text, its end; then the usage, if asked for, and ``[DONE]``."""
    start = (b"data: " + json.dumps(head, separators=(",", ":")).encode())[:-1] + b',"choices":[{"index":'
    end = b'}],"usage":null}\n\n' if body.include_usage else b"}]}\n\n"
    async for pieces in stream_pieces([generation], body.n or 1):
        yield b"".join(_chunk(body, piece, start, end) for piece in pieces)
    if body.include_usage:
        output = await generation.output()
        yield event_of({**head, "choices": [], "usage": usage_of([output], [generation])})
    yield DONE


def _chunk(body: ChatCompletionRequest, piece: Piece, start: bytes, end: bytes) -> bytes:
    """The chunks of a piece. Put together by hand: this runs for every token of every stream."""
    start += str(piece.choice).encode()
    chunks = b""
    if piece.is_first:
        role = b',"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null'
        chunks += start + role + end
    if piece.text or piece.logprobs:
        logprobs = b"null"
        if piece.logprobs:
            logprobs = json.dumps(chat_logprobs(piece.token_ids, piece.logprobs, body.top_logprobs or 0)).encode()
        content = json.dumps(piece.text).encode()
        chunks += (
            start + b',"delta":{"content":' + content + b'},"logprobs":' + logprobs + b',"finish_reason":null' + end
        )
    if piece.finish_reason is not None:
        reasons = {"finish_reason": piece.finish_reason, "stop_reason": piece.stop_reason}
        chunks += start + b',"delta":{},"logprobs":null,' + json.dumps(reasons).encode()[1:-1] + end
    return chunks
