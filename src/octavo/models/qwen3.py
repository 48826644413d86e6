"""Qwen3 (Yang et al., 2025): Llama that normalises each head of q and k before it rotates, which bounds the scores."""

from __future__ import annotations

from octavo.models.layers import Attention, CheckpointSection
from octavo.models.llama import LlamaModel


class Qwen3Model(LlamaModel):
    """Llama with q and k norms and, optionally, a sliding window."""

    def make_attention(self, section: CheckpointSection, layer: int) -> Attention:
        """With norms, without biases."""
        window = self.config.sliding_window
        return Attention(section, self.config, layer, self.cos_sin, head_norm=True, sliding_window=window)
