"""One answer: computed step by step, handed on as it comes, and summed up in facts."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.llm_engine import LLMEngine
    from octavo.outputs import RequestOutput
    from octavo.sampling_params import SamplingParams


class Interrupt:
    """Ctrl-C while it is entered: the first only sets ``requested``, so that a step is never torn; the second raises.

    A process that was told to ignore the signal goes on ignoring it.
    """

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Interrupt:
        self._previous = signal.getsignal(signal.SIGINT)
        if self._previous is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """What ``--json`` prints, in this order.

    Attributes:
        finish_reason: ``stop`` (the model ended it), ``length`` (a limit did) or ``abort`` (ctrl-C did).
        cached_tokens: prompt tokens that came from the prefix cache.
        ttft_s: from the request's arrival to its first token; loading the model is not in it.
        tokens_per_s: generated after the first token, per second; ``None`` for fewer than two tokens.
        blocks_used: most KV blocks that the request held.
    """

    text: str
    token_ids: Sequence[int]
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft_s: float
    tokens_per_s: float | None
    blocks_used: int

    @classmethod
    def of(cls, output: RequestOutput) -> AnswerFacts:
        """The facts of a finished request with one sample."""
        (answer,) = output.outputs
        metrics, num_tokens = output.metrics, len(answer.token_ids)
        return cls(
            text=answer.text,
            token_ids=answer.token_ids,
            finish_reason=answer.finish_reason,
            prompt_tokens=len(output.prompt_token_ids),
            completion_tokens=num_tokens,
            cached_tokens=output.num_cached_tokens,
            ttft_s=round(metrics.ttft_s, 6),
            tokens_per_s=round((num_tokens - 1) / metrics.decode_s, 3) if num_tokens > 1 else None,
            blocks_used=metrics.num_blocks,
        )

    def line(self, num_blocks: int) -> str:
        """The line of truth below an answer; ``num_blocks`` are in the pool."""
        cached = f" ({self.cached_tokens} cached)" if self.cached_tokens else ""
        parts = [f"{self.prompt_tokens} prompt tokens{cached} + {self.completion_tokens} generated"]
        if self.completion_tokens:
            parts.append(f"first token {self.ttft_s:.3f} s")
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        parts.append(f"{self.blocks_used} of {num_blocks} KV blocks")
        if self.finish_reason == "length":
            parts.append("cut off at the token limit")
        if self.finish_reason == "abort":
            parts.append("stopped")
        return "[" + " | ".join(parts) + "]"


def compute_answer(
    engine: LLMEngine, request_id: str, prompt: str, params: SamplingParams, write: Callable[[str], object]
) -> AnswerFacts:
    """Run one request to its end, or to ctrl-C, handing its text to ``write`` as it becomes certain.

    Raises:
        RequestError: the engine refuses the request.
    """
    engine.add_request(request_id, prompt, params)
    output = None
    with Interrupt() as interrupt:
        while output is None:
            for delta in engine.abort_request(request_id) if interrupt.requested else engine.step():
                write(delta.text)
                output = delta.output
    return AnswerFacts.of(output)
