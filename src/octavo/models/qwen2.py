"""Qwen2 and Qwen2.5 (Yang et al., 2024): Llama whose q, k and v projections have biases."""

from __future__ import annotations

from octavo.models.layers import Attention, CheckpointSection
from octavo.models.llama import LlamaModel


class Qwen2Model(LlamaModel):
    """Llama with q, k and v biases, and optionally a sliding window."""

    def make_attention(self, section: CheckpointSection, layer: int) -> Attention:
        """With biases."""
        window = self.config.sliding_window
        return Attention(section, self.config, layer, self.cos_sin, bias=True, sliding_window=window)
