"""Next-token distributions kept small: the most likely tokens of each position, and what is left for all others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

NUM_TOP = 64


@dataclass(frozen=True)
class TopDistributions:
    """Distributions of T positions, each by its 64 most likely tokens.

    Attributes:
        ids: uint16 [T, 64], most likely first.
        logprobs: float32 [T, 65]: of those tokens, and of all others together.
    """

    ids: np.ndarray
    logprobs: np.ndarray

    @classmethod
    def from_logits(cls, logits: np.ndarray) -> TopDistributions:
        """Take the most likely tokens of logits [T, V]; ``V`` fits 16 bits."""
        assert logits.shape[1] <= 1 << 16
        ids = np.argsort(-logits, axis=1, kind="stable")[:, :NUM_TOP]
        return cls(ids.astype(np.uint16), cls._logprobs(logits, ids))

    @staticmethod
    def _logprobs(logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True)).astype(np.float64)
        total = exponentials.sum(axis=1, keepdims=True)
        top = np.take_along_axis(exponentials, ids, axis=1)
        np.put_along_axis(exponentials, ids, 0.0, axis=1)
        others = exponentials.sum(axis=1, keepdims=True)
        return np.log(np.concatenate([top, others], axis=1) / total)

    def kl_divergence(self, logits: np.ndarray) -> np.ndarray:
        """KL(self ‖ softmax(logits)) [T] in nats, all other tokens counted as one.

        Merging tokens can only lower it, by about the others' share of the probability.
        """
        actual = self._logprobs(logits, self.ids.astype(np.int64))
        result: np.ndarray = (np.exp(self.logprobs) * (self.logprobs - actual)).sum(axis=1)
        return result

    def agrees_on_top1(self, logits: np.ndarray) -> np.ndarray:
        """Whether the most likely token is the same: bool [T]."""
        result: np.ndarray = logits.argmax(axis=1) == self.ids[:, 0]
        return result

    def __getitem__(self, positions: slice) -> TopDistributions:
        return TopDistributions(self.ids[positions], self.logprobs[positions])

    def save(self, path: Path, token_ids: np.ndarray) -> None:
        """Write them beside the text that led to them. Half precision of a logarithm moves a mean KL by 1e-6."""
        np.savez_compressed(path, token_ids=token_ids, ids=self.ids, logprobs=self.logprobs.astype(np.float16))

    @classmethod
    def load(cls, path: Path) -> tuple[TopDistributions, np.ndarray]:
        """Distributions and token ids. They sum to 1 again, so that the rounding of ``save`` cancels to first order."""
        stored = np.load(path)
        logprobs = stored["logprobs"].astype(np.float64)
        logprobs -= np.log(np.exp(logprobs).sum(axis=1, keepdims=True))
        return cls(stored["ids"], logprobs), stored["token_ids"]
