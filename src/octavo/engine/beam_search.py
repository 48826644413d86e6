"""Beam search: the most likely whole outputs, not the most likely next token.

Each beam is a request of one token; the next round's beams fork from it through the prefix cache: they share its full
blocks, and the last, partly filled one is copied. Scores and the rule when to stop are those of Hugging Face's
``generate(num_beams=…, early_stopping=False)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.outputs import Logprob

Beam = tuple[list[int], float]
"""Generated tokens, and the sum of their log probabilities."""


@dataclass(frozen=True, slots=True)
class BeamSequence:
    """One finished hypothesis.

    Attributes:
        score: sum of the tokens' log probabilities over their number to the power of ``length_penalty``.
    """

    token_ids: list[int]
    text: str
    cumulative_logprob: float
    score: float


@dataclass(slots=True)
class BeamSearch:
    """The state of one search.

    Attributes:
        beam_width: beams kept in each round, and hypotheses kept in the end.
        max_tokens: generated tokens at most.
        eos_token_ids: a beam that takes one of them is a finished hypothesis.
        finished: ``(score, tokens, sum)`` of the best hypotheses so far, best first.
    """

    beam_width: int
    max_tokens: int
    eos_token_ids: frozenset[int]
    length_penalty: float = 1.0
    finished: list[tuple[float, list[int], float]] = field(default_factory=list)

    def run(self, expand: Callable[[list[list[int]]], list[dict[int, Logprob]]]) -> None:
        """Search. ``expand`` tells, for the tokens of each beam, the most likely next tokens: ``2 * beam_width``."""
        beams: list[Beam] = [([], 0.0)]
        for length in range(1, self.max_tokens + 1):
            beams = self._choose(beams, expand([tokens for tokens, _ in beams]))
            if length == self.max_tokens:
                for tokens, total in beams:
                    self._finish(tokens, total)
            elif not beams or self._is_settled(beams[0][1], length):
                break

    def _choose(self, beams: list[Beam], candidates: list[dict[int, Logprob]]) -> list[Beam]:
        """The best continuations; those that end go to the hypotheses if they are among the best ``beam_width``."""
        continued = [
            (total + candidate.logprob, -index, tokens, token_id)
            for index, ((tokens, total), found) in enumerate(zip(beams, candidates, strict=True))
            for token_id, candidate in found.items()
        ]
        continued.sort(key=lambda entry: entry[:2], reverse=True)
        chosen: list[Beam] = []
        for rank, (total, _, tokens, token_id) in enumerate(continued[: 2 * self.beam_width]):
            if token_id in self.eos_token_ids:
                if rank < self.beam_width:
                    self._finish([*tokens, token_id], total)
            elif len(chosen) < self.beam_width:
                chosen.append(([*tokens, token_id], total))
        return chosen

    def _finish(self, tokens: list[int], total: float) -> None:
        self.finished.append((total / len(tokens) ** self.length_penalty, tokens, total))
        self.finished.sort(key=lambda entry: -entry[0])
        del self.finished[self.beam_width :]

    def _is_settled(self, best_total: float, length: int) -> bool:
        """No running beam can still beat the worst hypothesis, by the score it has now."""
        return (
            len(self.finished) == self.beam_width and best_total / length**self.length_penalty <= self.finished[-1][0]
        )
