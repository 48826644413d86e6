"""From what a caller gives to requests that the core can run; everything wrong with it is said here."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

from octavo.errors import RequestError
from octavo.namespace import DEFAULT_NAMESPACE, Namespace
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.tokenization.tokenizer import Tokenizer

Prompt = str | Sequence[int]
"""Text, or token ids."""


class InputProcessor:
    """Tokenises prompts and checks them against the model.

    Attributes:
        vocab_size: rows of the model's output; every token id is below it.
        eos_token_ids: tokens that end an output unless ``ignore_eos``.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset(token_id for token_id in eos_token_ids if token_id < vocab_size)

    def token_ids(self, prompt: Prompt) -> list[int]:
        """The prompt's tokens. Raises :class:`RequestError` for what is no prompt, and an id outside the vocabulary."""
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
            raise RequestError(f"a prompt must be a string or a list of token ids, not {type(prompt).__name__}")
        token_ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        for position, token_id in enumerate(token_ids):
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise RequestError(f"prompt token {position} must be an integer, not {token_id!r}")
            if not 0 <= token_id < self.vocab_size:
                raise RequestError(f"prompt token {position} is {token_id}; ids go from 0 to {self.vocab_size - 1}")
        return token_ids

    def requests(
        self,
        request_id: str,
        token_ids: list[int],
        params: SamplingParams,
        *,
        arrival_s: float,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
        deadline_s: float = math.inf,
    ) -> list[Request]:
        """One request per sample; sample ``i`` draws with ``seed + i``. Raises :class:`RequestError`."""
        if not isinstance(params, SamplingParams):
            raise RequestError(f"sampling parameters must be SamplingParams, not {params!r}")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise RequestError(f"priority must be an integer, not {priority!r}")
        if math.isnan(deadline_s):
            raise RequestError("the deadline must be a number of seconds, not nan")
        if not isinstance(tenant, str) or not isinstance(cache_salt, str | None):
            raise RequestError(f"tenant and cache_salt must be strings, not {tenant!r} and {cache_salt!r}")
        for name, ids in (("stop_token_ids", params.stop_token_ids), ("logit_bias", params.logit_bias or ())):
            for token_id in ids:
                if token_id >= self.vocab_size:
                    raise RequestError(f"{name} has token {token_id}; ids go from 0 to {self.vocab_size - 1}")
        for name, count in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
            if count is not None and count > self.vocab_size:
                raise RequestError(f"{name} is {count}, but the vocabulary has {self.vocab_size} tokens")
        seed = secrets.randbits(63) if params.seed is None else params.seed
        namespace = Namespace(salt=cache_salt) if cache_salt is not None else DEFAULT_NAMESPACE
        return [
            Request(
                request_id if params.n == 1 else f"{request_id}#{index}",
                token_ids,
                params,
                eos_token_ids=self.eos_token_ids,
                seed=(seed + index) % 2**64,
                namespace=namespace,
                priority=priority,
                tenant=tenant,
                arrival_s=arrival_s,
                deadline_s=deadline_s,
            )
            for index in range(params.n)
        ]
