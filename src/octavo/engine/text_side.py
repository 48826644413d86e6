"""What a server's process knows of the model."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.engine.input_processor import InputProcessor
from octavo.models.config import ModelConfig
from octavo.tokenization.tokenizer import Tokenizer, load_tokenizer
from octavo.weights.loader import open_checkpoint


@dataclass(frozen=True, slots=True)
class TextSide:
    """Everything but the weights."""

    tokenizer: Tokenizer
    model_config: ModelConfig
    input_processor: InputProcessor

    @classmethod
    def load(cls, model_path: str) -> TextSide:
        """Read headers and vocabulary. Raises :class:`~octavo.errors.ModelError`."""
        checkpoint = open_checkpoint(model_path)
        tokenizer, model_config = load_tokenizer(checkpoint), checkpoint.config
        eos_token_ids = frozenset(model_config.eos_token_ids) | frozenset(tokenizer.eos_token_ids)
        return cls(tokenizer, model_config, InputProcessor(tokenizer, model_config.vocab_size, eos_token_ids))
