"""How long outputs become, learned from those that have ended."""

from __future__ import annotations

FORGETTING = 1 / 256
"""Share of its weight, against the newest, that everything known loses with each new length."""
FIRST_GUESS = 256
"""Tokens; stands for one output until others have ended."""
OVERTIME = 4
"""An output longer than all known ones is expected to go on for a quarter of what it has."""
NUM_BINS = 64
MOST_WEIGHT = 1e100


class OutputLengths:
    """A histogram of output lengths in half octaves, and what it says about an output that has come so far.

    Lengths vary widely, so the mean says little: of an output that has 100 tokens, what counts is how long those became
    that reached 100 tokens.
    """

    def __init__(self) -> None:
        self._weights = [0.0] * NUM_BINS
        self._totals = [0.0] * NUM_BINS  # weight × length
        self._weight = 1.0  # of the next length: it grows, instead of all others shrinking
        self._means: dict[int, int] = {}  # by bin: of the lengths there and above, as far as somebody asked
        self.learn(FIRST_GUESS)

    def learn(self, num_tokens: int) -> None:
        """An output ended after so many tokens."""
        bin_ = bin_of(num_tokens)
        self._means.clear()
        self._weights[bin_] += self._weight
        self._totals[bin_] += self._weight * num_tokens
        self._weight /= 1 - FORGETTING
        if self._weight > MOST_WEIGHT:
            self._weights = [weight / self._weight for weight in self._weights]
            self._totals = [total / self._weight for total in self._totals]
            self._weight = 1.0

    def expected(self, num_tokens: int) -> int:
        """How long an output probably becomes that has ``num_tokens`` tokens: the mean of those that came as far."""
        bin_ = bin_of(num_tokens)
        known = self._means.get(bin_)
        if known is None:
            weight = sum(self._weights[bin_:])
            known = self._means[bin_] = int(sum(self._totals[bin_:]) / weight) if weight > 0 else 0
        return known if known > num_tokens else num_tokens + num_tokens // OVERTIME + 1


def next_bin(num_tokens: int) -> int:
    """The first length in the next bin: what is known of an output changes there."""
    octave = num_tokens.bit_length()
    if octave < 3:
        return num_tokens + 1
    half = 1 << (octave - 2)
    return 4 * half if num_tokens >= 3 * half else 3 * half


def bin_of(num_tokens: int) -> int:
    """Half octaves: 1, 2, 3, 4–5, 6–7, 8–11, 12–15, …"""
    octave = num_tokens.bit_length()
    return min(2 * octave + (num_tokens >> max(octave - 2, 0) & 1), NUM_BINS - 1)
