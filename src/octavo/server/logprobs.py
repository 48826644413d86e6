"""Log probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.outputs import Logprob

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""

Candidates = Mapping[int, Logprob]


def chat_logprobs(token_ids: Sequence[int], candidates: Sequence[Candidates], num_top: int) -> dict[str, Any]:
    """``{"content": [...]}`` of ``/v1/chat/completions``."""
    content = []
    for token_id, found in zip(token_ids, candidates, strict=True):
        top = [_chat_entry(each) for each in found.values() if each.rank <= num_top]
        content.append({**_chat_entry(found[token_id]), "top_logprobs": top})
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """``{"tokens", "token_logprobs", "top_logprobs", "text_offset"}`` of ``/v1/completions``, for one choice.

    Offsets count characters of the choice's text from its beginning, over all chunks of a stream.
    """

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._offset = 0
        self._prompt: tuple[str, Sequence[int], Sequence[Candidates | None]] | None = None

    def take_prompt(self, token_ids: Sequence[int], first_token: str, candidates: Sequence[Candidates | None]) -> None:
        """An echoed prompt, to stand before the next tokens; its first token has no probability."""
        self._prompt = (first_token, token_ids[1:], candidates[1:])

    def take(self, token_ids: Sequence[int], candidates: Sequence[Candidates]) -> dict[str, Any]:
        """The next tokens."""
        shown: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        if self._prompt is not None:
            first_token, prompt_ids, found_of_prompt = self._prompt
            self._prompt = None
            for values, value in zip(shown.values(), (first_token, None, None, 0), strict=True):
                values.append(value)
            self._offset = len(first_token)
            self._append(shown, prompt_ids, [found for found in found_of_prompt if found is not None])
        self._append(shown, token_ids, candidates)
        if self._num_top == 0:
            shown["top_logprobs"] = None
        return shown

    def _append(self, shown: dict[str, Any], token_ids: Sequence[int], candidates: Sequence[Candidates]) -> None:
        for token_id, found in zip(token_ids, candidates, strict=True):
            shown["tokens"].append(token_text(found[token_id]))
            shown["token_logprobs"].append(_finite(found[token_id].logprob))
            top = {token_text(each): _finite(each.logprob) for each in found.values() if each.rank <= self._num_top}
            shown["top_logprobs"].append(top)
            shown["text_offset"].append(self._offset)
            self._offset += len(found[token_id].decoded_token)


def prompt_logprobs(candidates: Sequence[Candidates | None]) -> list[dict[str, Any] | None]:
    """Per prompt token: token id → its log probability, rank and text."""
    return [
        None
        if found is None
        else {
            str(token_id): {"logprob": _finite(each.logprob), "rank": each.rank, "decoded_token": each.decoded_token}
            for token_id, each in found.items()
        }
        for found in candidates
    ]


def token_text(candidate: Logprob) -> str:
    """The token as text; a piece of a character as ``bytes:\\\\xe2``, so that different pieces stay different."""
    try:
        candidate.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in candidate.bytes)
    return candidate.decoded_token


def _chat_entry(candidate: Logprob) -> dict[str, Any]:
    return {
        "token": token_text(candidate),
        "logprob": _finite(candidate.logprob),
        "bytes": list(candidate.bytes),
    }


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
