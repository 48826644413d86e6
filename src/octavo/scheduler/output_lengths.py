"""How long outputs become, learned from those that have ended."""

from __future__ import annotations

FORGETTING = 1 / 256
"""Share of its weight that everything known loses with each new length."""
FIRST_GUESS = 256
"""Tokens; stands for one output until others have ended."""
OVERTIME = 4
"""An output longer than all known ones is expected to go on for a quarter of what it has."""
NUM_BINS = 64


class OutputLengths:
    """A histogram of output lengths in half octaves, and what it says about an output that has come so far.

    Lengths vary widely, so the mean says little: of an output that has 100 tokens, what counts is how long those became
    that reached 100 tokens.
    """

    def __init__(self) -> None:
        self._weights = [0.0] * NUM_BINS
        self._totals = [0.0] * NUM_BINS  # weight × length
        self._means = [0.0] * NUM_BINS  # of the lengths in this bin and above
        self.learn(FIRST_GUESS)

    def learn(self, num_tokens: int) -> None:
        """An output ended after so many tokens."""
        weights, totals = self._weights, self._totals
        keep = 1 - FORGETTING
        bin_ = _bin(num_tokens)
        weight = total = 0.0
        for each in reversed(range(NUM_BINS)):
            weights[each] = weights[each] * keep + (each == bin_)
            totals[each] = totals[each] * keep + (num_tokens if each == bin_ else 0)
            weight += weights[each]
            total += totals[each]
            self._means[each] = total / weight if weight > 0 else 0.0

    def expected(self, num_tokens: int) -> int:
        """How long an output probably becomes that has ``num_tokens`` tokens."""
        known = int(self._means[_bin(num_tokens)])
        return known if known > num_tokens else num_tokens + num_tokens // OVERTIME + 1


def _bin(num_tokens: int) -> int:
    """Half octaves: 1, 2, 3, 4–5, 6–7, 8–11, 12–15, …"""
    octave = num_tokens.bit_length()
    return min(2 * octave + (num_tokens >> max(octave - 2, 0) & 1), NUM_BINS - 1)
