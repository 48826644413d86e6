"""What distinguishes one tokenizer from another; made by the readers of GGUF metadata and of Hugging Face folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

PieceSpelling = Callable[[int], bytes]
"""Token id → its exact bytes; an id that is no token has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerDefinition:
    """Attributes:
    source: the file or folder it came from, for messages.
    backend: cuts text into token ids; its own post-processor and decoder are not used.
    vocab_size: number of token ids.
    spelling: token id → exact bytes.
    strips_leading_space: the first token's leading space belongs to the encoding, not to the text (SentencePiece).
    bos_token_id: begins a sequence; ``None``: the model has none.
    eos_token_ids: any of these ends a sequence; ascending.
    special_ids: tokens that are not text: skipped when decoding unless asked for.
    prefix_ids: what ``encode`` puts before a prompt (BOS, or nothing).
    suffix_ids: what ``encode`` puts after a prompt (nothing for all but a few models).
    special_tokens: what chat templates see: ``bos_token``, ``eos_token``, … → text.
    chat_templates: name → source; the usual one is called ``default``.
    """

    source: str
    backend: tokenizers.Tokenizer
    vocab_size: int
    spelling: PieceSpelling
    strips_leading_space: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    special_ids: frozenset[int]
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)
