"""How the next token is chosen: the parameters of one request, checked once, when they are made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import RequestError

GREEDY_EPSILON = 1e-5
"""Temperatures below this mean greedy: dividing by less overflows float32 logits."""

MAX_LOGPROBS = 50
MAX_N = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """Parameters of one request. Names and meanings follow the OpenAI API and vLLM.

    Order of application: ``repetition_penalty``, ``presence_penalty``, ``frequency_penalty``, ``logit_bias`` (and the
    ban of stop tokens before ``min_tokens``), ``temperature``, ``min_p``, ``top_k``, ``top_p``, then one draw.
    Log probabilities are those of the model: taken before all of these.

    Attributes:
        n: samples to draw for the prompt; sample ``i`` is drawn with ``seed + i``.
        temperature: 0 means greedy: the most likely token, the lowest id among equals.
        top_k: keep the ``top_k`` most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches ``top_p``.
        min_p: keep tokens at least ``min_p`` times as likely as the most likely one.
        seed: a draw depends on ``(seed, position)`` alone. ``None`` takes a fresh random seed for each request.
        stop: strings that end the output; they are not part of it unless ``include_stop_str_in_output``.
        stop_token_ids: tokens that end the output, besides the model's own end-of-sequence tokens.
        ignore_eos: go on after the model's end-of-sequence token (``stop_token_ids`` still end the output).
        max_tokens: tokens to generate at most; ``None``: as many as fit.
        min_tokens: no stop token can be chosen before so many tokens are generated.
        logprobs: report the ``logprobs`` most likely tokens at each position, and the chosen one; at most 50.
        prompt_logprobs: the same for the prompt's tokens.
        logit_bias: token id → number added to its logit, in [-100, 100].
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else _tuple("stop", self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", _tuple("stop_token_ids", self.stop_token_ids))
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping):
                raise RequestError(f"logit_bias must map token ids to numbers, not {self.logit_bias!r}")
            object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        self._check()

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken, without a draw."""
        return self.temperature < GREEDY_EPSILON

    @property
    def needs_history(self) -> bool:
        """Whether the choice depends on the tokens so far."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def _check(self) -> None:
        _require_int("n", self.n, 1, MAX_N)
        _require_number("temperature", self.temperature, 0.0, 100.0)
        _require_int("top_k", self.top_k, -1, 2**31 - 1)
        _require_number("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _require_number("min_p", self.min_p, 0.0, 1.0)
        _require_number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, low_open=True)
        _require_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _require_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _require_int("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            _require_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _require_int("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _require_int(name, getattr(self, name), 0, MAX_LOGPROBS)
        for string in self.stop:
            if not isinstance(string, str) or not string:
                raise RequestError(f"stop must hold non-empty strings, not {string!r}")
        for token_id in self.stop_token_ids:
            _require_int("stop_token_ids", token_id, 0, 2**31 - 1)
        for token_id, bias in (self.logit_bias or {}).items():
            _require_int("logit_bias token id", token_id, 0, 2**31 - 1)
            _require_number("logit_bias", bias, -100.0, 100.0)
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, not {getattr(self, name)!r}")


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, Iterable):
        raise RequestError(f"{name} must be a list, not {value!r}")
    return tuple(value)


def _require_int(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, not {value!r}")
    if not low <= value <= high:
        raise RequestError(f"{name} must be between {low} and {high}, not {value}")


def _require_number(name: str, value: Any, low: float, high: float, *, low_open: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(f"{name} must be a number, not {value!r}")
    if not math.isfinite(value) or not low <= value <= high or (low_open and value == low):
        bracket = "(" if low_open else "["
        raise RequestError(f"{name} must be in {bracket}{low:g}, {high:g}], not {value}")
