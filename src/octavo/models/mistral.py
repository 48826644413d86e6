"""Mistral (Jiang et al., 2023): Llama whose tokens see a sliding window of the tokens before them."""

from __future__ import annotations

from octavo.models.layers import Attention, CheckpointSection
from octavo.models.llama import LlamaModel


class MistralModel(LlamaModel):
    """Llama with a sliding window; later versions dropped it, and then ``sliding_window`` is ``None``."""

    def make_attention(self, section: CheckpointSection, layer: int) -> Attention:
        """With a window, without biases."""
        return Attention(section, self.config, layer, self.cos_sin, sliding_window=self.config.sliding_window)
