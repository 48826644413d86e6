"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from octavo.errors import RequestError
from octavo.server.chat import chat_token_ids
from octavo.server.protocol import DetokenizeRequest, TokenizeRequest
from octavo.server.state import state_of
from octavo.server.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute)


@router.post("/tokenize", tags=["tokens"])
async def tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
    """The token ids of a text, or of a conversation through the model's chat template."""
    server = state_of(request)
    server.check_model(body.model)
    tokenizer = server.engine.text.tokenizer
    if body.messages is not None:
        token_ids = await chat_token_ids(server, body.messages, add_generation_prompt=body.add_generation_prompt)
    else:
        prompt = body.prompt or ""
        token_ids = await server.off_loop(len(prompt), lambda: tokenizer.encode(prompt, body.add_special_tokens))
    answer = {"tokens": token_ids, "count": len(token_ids), "max_model_len": server.engine.ready.max_model_len}
    if body.return_token_strs:
        answer["token_strs"] = [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in token_ids]
    return answer


@router.post("/detokenize", tags=["tokens"])
async def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, str]:
    """The text of token ids, special tokens included."""
    server = state_of(request)
    server.check_model(body.model)
    vocab_size = server.engine.text.input_processor.vocab_size
    for place, token_id in enumerate(body.tokens):
        if not 0 <= token_id < vocab_size:
            raise RequestError(f"tokens[{place}] is {token_id}; ids go from 0 to {vocab_size - 1}")
    tokenizer = server.engine.text.tokenizer
    text = await server.off_loop(len(body.tokens), lambda: tokenizer.decode(body.tokens, skip_special_tokens=False))
    return {"prompt": text}
