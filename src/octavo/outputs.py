"""What a caller gets back."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Logprob:
    """One candidate at one position.

    Attributes:
        logprob: natural logarithm of its probability under the model.
        rank: 1 is the most likely token of the vocabulary.
        decoded_token: its text as far as it has one (a piece of a UTF-8 character decodes to U+FFFD).
        bytes: the token's exact bytes.
    """

    logprob: float
    rank: int
    decoded_token: str
    bytes: bytes


@dataclass(slots=True)
class CompletionOutput:
    """One sample.

    Attributes:
        token_ids: generated tokens, the stop token included.
        logprobs: per generated token, token id → :class:`Logprob`, most likely first; the chosen one always there.
        cumulative_logprob: sum over the chosen tokens; ``None`` unless ``logprobs`` was asked for.
        finish_reason: ``stop``, ``length``, ``abort``, ``timeout`` (its deadline passed) or ``error`` (a step failed);
            ``None`` while it runs.
        stop_reason: the stop string or stop token id that ended it; ``None`` for the model's own end of sequence.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Where the time went. Seconds, on the monotonic clock.

    Attributes:
        queue_s: from arrival to the first step.
        ttft_s: from arrival to the first token.
        e2e_s: from arrival to the last token.
        num_preemptions: times the request gave its blocks back and was computed again.
        num_recomputed_tokens: tokens computed again because of that.
        num_blocks: most blocks it held.
    """

    arrival_s: float = 0.0
    queue_s: float = 0.0
    ttft_s: float = 0.0
    e2e_s: float = 0.0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_blocks: int = 0

    @property
    def decode_s(self) -> float:
        """From the first token to the last."""
        return self.e2e_s - self.ttft_s


@dataclass(slots=True)
class RequestOutput:
    """One prompt and its samples.

    Attributes:
        num_cached_tokens: prompt tokens that came from the prefix cache.
        prompt_logprobs: per prompt token; ``None`` for the first, which nothing precedes.
        seed: the seed that was used; give it again for the same draw.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    seed: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """What one sample of one request gained in a step.

    Attributes:
        text: text that became certain; may be empty while a character or a possible stop string is incomplete.
        token_ids: new tokens, usually one.
        logprobs: beside ``token_ids``, when asked for.
        output: on the last delta of the whole request, everything that it produced.
    """

    request_id: str
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    output: RequestOutput | None = None
