"""Rotary position embedding as values: which angle each pair of a head's elements turns by per position.

Pair ``i`` of ``rotary_dim / 2`` turns by ``theta ** (-2 i / rotary_dim)`` radians per position (Su et al., "RoFormer",
https://arxiv.org/abs/2104.09864). To stretch the context, models scale these frequencies in one of the ways below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All frequencies divided by ``factor``: positions are interpolated (https://arxiv.org/abs/2306.15595)."""

    factor: float

    def scale(self, frequencies: Float64, theta: float) -> Float64:
        """Scale the frequencies [rotary_dim / 2] of a model with this ``theta``."""
        return frequencies / self.factor


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's: slow pairs divided by ``factor``, fast ones kept, a smooth passage between.

    A pair is slow if it turns fewer than ``low_freq_factor`` times over the original context, and fast from
    ``high_freq_factor`` turns on.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def scale(self, frequencies: Float64, theta: float) -> Float64:
        """Scale the frequencies [rotary_dim / 2] of a model with this ``theta``."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        kept = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0, 1)
        return kept * frequencies + (1 - kept) * frequencies / self.factor


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (https://arxiv.org/abs/2309.00071): as Llama 3's, but the passage is linear in the pair's number.

    It runs from the pair that turns ``beta_fast`` times over the original context to the one that turns ``beta_slow``
    times. Cosines and sines grow by ``attention_factor``, which sharpens the attention of the longer context.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    @staticmethod
    def default_attention_factor(factor: float) -> float:
        """The paper's recommendation: square root of the inverse temperature, ``0.1 ln(factor) + 1``."""
        return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0

    def scale(self, frequencies: Float64, theta: float) -> Float64:
        """Scale the frequencies [rotary_dim / 2] of a model with this ``theta``."""
        rotary_dim = 2 * len(frequencies)

        def pair_that_turns(turns: float) -> float:
            wavelength = self.original_max_position_embeddings / (turns * 2 * math.pi)
            return rotary_dim * math.log(wavelength) / (2 * math.log(theta))

        first = max(math.floor(pair_that_turns(self.beta_fast)), 0)
        last = min(math.ceil(pair_that_turns(self.beta_slow)), rotary_dim - 1)
        width = last - first or 0.001
        interpolated = np.clip((np.arange(len(frequencies)) - first) / width, 0, 1)
        return (1 - interpolated) * frequencies + interpolated * frequencies / self.factor


@dataclass(frozen=True, slots=True)
class FactorScaling:
    """Each frequency divided by its own factor: what a GGUF file lists in its tensor ``rope_freqs.weight``."""

    factors: tuple[float, ...]

    def scale(self, frequencies: Float64, theta: float) -> Float64:
        """Scale the frequencies [rotary_dim / 2] of a model with this ``theta``."""
        return frequencies / np.array(self.factors, dtype=np.float64)


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | FactorScaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding of a model.

    Attributes:
        theta: base of the frequencies.
        rotary_dim: leading elements of a head that rotate; even.
        scaling: how the context was stretched; ``None``: it was not.
    """

    theta: float
    rotary_dim: int
    scaling: RopeScaling | None = None

    def inverse_frequencies(self) -> Float64:
        """Radians per position of each pair, scaling applied: float64 [rotary_dim / 2]."""
        frequencies = self.theta ** (-np.arange(0, self.rotary_dim, 2, dtype=np.float64) / self.rotary_dim)
        return frequencies if self.scaling is None else self.scaling.scale(frequencies, self.theta)

    @property
    def attention_factor(self) -> float:
        """What cosines and sines are multiplied by; 1 except with YaRN."""
        return self.scaling.attention_factor if isinstance(self.scaling, YarnScaling) else 1.0
