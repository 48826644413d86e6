"""What requests look like: OpenAI's fields, and the extra ones that the field's servers share.

A field that is not here is refused by name. OpenAI's fields that Octavo does not have are listed in ``NOT_SUPPORTED``
with the values at which they change nothing; clients send those unasked.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from octavo.errors import RequestError
from octavo.sampling_params import MAX_LOGPROBS, MAX_N, SamplingParams

MAX_PROMPTS = 256
MAX_CHOICES = 1024
"""In one completion request: prompts, and prompts times ``n``."""
MAX_STOP_STRINGS = 16

_NOTHING: tuple[object, ...] = (None,)
NOT_SUPPORTED: dict[str, tuple[object, ...]] = {
    "audio": _NOTHING,
    "best_of": (None, 1),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "metadata": (None, {}),
    "modalities": (None, ["text"]),
    "moderation": _NOTHING,
    "parallel_tool_calls": (None, True, False),
    "prediction": _NOTHING,
    "prompt_cache_key": _NOTHING,
    "reasoning_effort": _NOTHING,
    "response_format": (None, {"type": "text"}),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "verbosity": _NOTHING,
    "web_search_options": _NOTHING,
}
"""Field → values at which leaving it out changes nothing."""

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


def _between(low: float, high: float, *, low_open: bool = False) -> Any:
    """What the API page says of a value; :class:`SamplingParams` checks it."""
    bounds: dict[str, Any] = {"exclusiveMinimum" if low_open else "minimum": low, "maximum": high}
    return Field(json_schema_extra=bounds)


NumTokens = Annotated[int, _between(1, 2**31 - 1)]
Penalty = Annotated[FiniteFloat, _between(-2, 2)]
Share = Annotated[FiniteFloat, _between(0, 1)]
TokenId = Annotated[int, _between(0, 2**31 - 1)]
NumLogprobs = Annotated[int, _between(0, MAX_LOGPROBS)]


class Strict(BaseModel):
    """No unknown fields, no conversions between types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Strict):
    """Options of a stream."""

    include_usage: bool = Field(False, description="A last chunk without choices has the usage.")
    include_obfuscation: Literal[False] = Field(False, description="Accepted for OpenAI's clients; there is none.")


class RequestFields(Strict):
    """What chat and text completions have in common."""

    model: str | None = Field(None, description="One of the names that /v1/models lists; absent: the one model.")
    frequency_penalty: Penalty | None = None
    ignore_eos: bool = Field(False, description="Go on after the model's end-of-sequence token.")
    include_stop_str_in_output: bool = False
    logit_bias: dict[str, Annotated[FiniteFloat, _between(-100, 100)]] | None = Field(
        None, description="Token id → number added to its logit."
    )
    max_tokens: NumTokens | None = Field(
        None, description="At most; what does not fit into the model is a lower limit."
    )
    min_p: Share | None = None
    min_tokens: Annotated[int, _between(0, 2**31 - 1)] = Field(0, description="No stop token before so many tokens.")
    n: Annotated[int, _between(1, MAX_N)] | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[FiniteFloat, _between(0, 100, low_open=True)] | None = None
    seed: int | None = Field(None, description="The same request with the same seed has the same answer.")
    skip_special_tokens: bool = True
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[FiniteFloat, _between(0, 100)] | None = None
    top_k: Annotated[int, _between(-1, 2**31 - 1)] | None = None
    top_p: Annotated[FiniteFloat, _between(0, 1, low_open=True)] | None = None
    user: str | None = Field(None, description="Accepted for OpenAI's clients; it changes nothing and is not logged.")
    cache_salt: str | None = Field(None, description="Only requests with the same salt share cached prefixes.")
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="Smaller runs sooner.")
    deadline_s: FiniteFloat | None = Field(None, gt=0, description="Seconds after which to give up.")

    @model_validator(mode="before")
    @classmethod
    def _leave_out_what_changes_nothing(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in NOT_SUPPORTED.keys() & data.keys() - cls.model_fields.keys():
            if not any(type(data[name]) is type(value) and data[name] == value for value in NOT_SUPPORTED[name]):
                raise ValueError(f"{name} is not supported by this server; leave it out")
        return {name: value for name, value in data.items() if name not in NOT_SUPPORTED or name in cls.model_fields}

    @model_validator(mode="after")
    def _check(self) -> RequestFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        if isinstance(self.stop, list) and len(self.stop) > MAX_STOP_STRINGS:
            raise ValueError(f"stop has {len(self.stop)} strings; at most {MAX_STOP_STRINGS} are possible")
        return self

    @property
    def deadline(self) -> float:
        """Seconds from the request's arrival; infinite for none."""
        return math.inf if self.deadline_s is None else self.deadline_s

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def _sampling_params(
        self, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None = None
    ) -> SamplingParams:
        given = {
            "frequency_penalty": self.frequency_penalty,
            "min_p": self.min_p,
            "n": self.n,
            "presence_penalty": self.presence_penalty,
            "repetition_penalty": self.repetition_penalty,
            "stop": self.stop,
            "stop_token_ids": self.stop_token_ids,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
        }
        return SamplingParams(
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
            logit_bias=_token_biases(self.logit_bias),
            logprobs=logprobs,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            prompt_logprobs=prompt_logprobs,
            seed=self.seed,
            skip_special_tokens=self.skip_special_tokens,
        )


class TextPart(Strict):
    """One part of a message's content; the model reads text only."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nothing(cls, data: Any) -> Any:
        """Clients send back what an assistant's message had, with its empty fields."""
        if not isinstance(data, dict):
            return data
        empty = ("annotations", "audio", "function_call", "reasoning_content", "refusal", "tool_calls")
        return {name: value for name, value in data.items() if name not in empty or value not in (None, [])}

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it. OpenAI's newer name for the system's role is the older one there."""
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role}
        if isinstance(self.content, list):
            message["content"] = [{"type": "text", "text": part.text} for part in self.content]
        else:
            message["content"] = self.content
        if self.name is not None:
            message["name"] = self.name
        return message


class ChatCompletionRequest(RequestFields):
    """Body of ``/v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    logprobs: bool | None = None
    max_completion_tokens: NumTokens | None = Field(None, description="OpenAI's newer name of max_tokens.")
    top_logprobs: int | None = Field(None, ge=0, le=20)

    @model_validator(mode="before")
    @classmethod
    def _refuse_prompt_logprobs(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("prompt_logprobs") is not None:
            raise ValueError("prompt_logprobs is possible with /v1/completions only")
        return data

    @model_validator(mode="after")
    def _check_chat(self) -> ChatCompletionRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens are two names of one limit; give one of them")
        return self

    def sampling_params(self) -> SamplingParams:
        """Raises :class:`~octavo.errors.RequestError` for a value out of range."""
        max_tokens = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return self._sampling_params(
            max_tokens=max_tokens, logprobs=(self.top_logprobs or 0) if self.logprobs else None
        )


class CompletionRequest(RequestFields):
    """Body of ``/v1/completions``."""

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]] = Field(
        description="Text or token ids; one prompt or many."
    )
    echo: bool | None = Field(None, description="The prompt comes before the completion, with its log probabilities.")
    logprobs: NumLogprobs | None = Field(None, ge=0, description="So many of the most likely tokens at each position.")
    prompt_logprobs: NumLogprobs | None = Field(
        None, ge=0, description="The same for the prompt's tokens; not for streams."
    )

    @model_validator(mode="after")
    def _check_completion(self) -> CompletionRequest:
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs is not possible in a stream; echo with logprobs is")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens is 0, which makes sense with echo only")
        if len(self.prompts()) > MAX_PROMPTS:
            raise ValueError(f"prompt has {len(self.prompts())} prompts; at most {MAX_PROMPTS} are possible")
        if len(self.prompts()) * (self.n or 1) > MAX_CHOICES:
            raise ValueError(f"{len(self.prompts())} prompts times n = {self.n} is more than {MAX_CHOICES} choices")
        if not self.prompts():
            raise ValueError("prompt is empty; give at least one")
        return self

    def prompts(self) -> list[str] | list[list[int]]:
        """All of them."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if prompt and isinstance(prompt[0], int):
            return cast(list[list[int]], [prompt])
        return cast(list[list[int]], prompt)

    @property
    def only_prompt(self) -> bool:
        """Whether nothing shall be generated."""
        return self.max_tokens == 0

    def sampling_params(self) -> SamplingParams:
        """Raises :class:`~octavo.errors.RequestError` for a value out of range."""
        prompt_logprobs = self.prompt_logprobs
        if self.echo and self.logprobs is not None:
            prompt_logprobs = max(self.logprobs, prompt_logprobs or 0)
        max_tokens = 16 if self.max_tokens is None else max(self.max_tokens, 1) if self.echo else self.max_tokens
        return self._sampling_params(max_tokens=max_tokens, logprobs=self.logprobs, prompt_logprobs=prompt_logprobs)


class TokenizeRequest(Strict):
    """Body of ``/tokenize``: a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    add_special_tokens: bool = Field(True, description="For a prompt: what the model wants before and after it.")
    add_generation_prompt: bool = Field(True, description="For messages: end with what makes the model answer.")
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeRequest(Strict):
    """Body of ``/detokenize``."""

    model: str | None = None
    tokens: list[TokenId]


def _token_biases(biases: dict[str, float] | None) -> dict[int, float] | None:
    """JSON's keys are strings."""
    if biases is None:
        return None
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise RequestError(f"logit_bias has the key {key[:40]!r}; keys are token ids")
    return {int(key): value for key, value in biases.items()}
