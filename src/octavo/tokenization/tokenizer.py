"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from octavo.errors import ChatTemplateError, RequestError
from octavo.tokenization.chat_template import ChatTemplate
from octavo.tokenization.definition import TokenizerDefinition


class TokenizedCheckpoint(Protocol):
    """What :func:`load_tokenizer` needs of a checkpoint."""

    @property
    def path(self) -> Path:
        """The GGUF file, or the folder."""

    @property
    def format(self) -> str:
        """``gguf`` or ``safetensors``."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """A GGUF file's keys."""


class TokenPieces(dict[int, bytes]):
    """Token id → its exact bytes, spelled out on first use: a vocabulary has many tokens, an answer few."""

    def __init__(self, spelling: Callable[[int], bytes]) -> None:
        super().__init__()
        self._spelling = spelling

    def __missing__(self, token_id: int) -> bytes:
        piece = self[token_id] = self._spelling(token_id)
        return piece


class Tokenizer:
    """One model's tokenizer.

    Text that spells a special token (``<|im_end|>``) is encoded as that token, as the model's own tokenizer does it; so
    are chat templates' markers. Whoever puts strangers' text into a prompt decides whether that is wanted.

    Decoding joins the tokens' exact bytes and reads them as UTF-8; each invalid part becomes one U+FFFD. It never
    "cleans up" spaces. Ids that are no token (a model's padded rows) have no bytes.

    Attributes:
        pieces: token id → exact bytes.
        vocab_size: number of token ids.
        bos_token_id: begins a sequence; ``None``: the model has none.
        eos_token_ids: any of these ends a sequence; ascending.
        special_ids: tokens that are not text.
        special_tokens: ``bos_token``, ``eos_token``, … → text.
        strips_leading_space: a text's first space belongs to the encoding (SentencePiece).
    """

    def __init__(self, definition: TokenizerDefinition) -> None:
        self._definition = definition
        self._backend = definition.backend
        self.pieces = TokenPieces(definition.spelling)
        self.vocab_size = definition.vocab_size
        self.bos_token_id = definition.bos_token_id
        self.eos_token_ids = definition.eos_token_ids
        self.special_ids = definition.special_ids
        self.special_tokens = definition.special_tokens
        self.strips_leading_space = definition.strips_leading_space

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], path: object) -> Tokenizer:
        """Built from the ``tokenizer.*`` keys of a GGUF file; ``path`` is for messages.

        Raises:
            ModelFileError: the keys are damaged; it names the one.
            UnsupportedModelError: they name a kind of tokenizer that Octavo does not have.
        """
        from octavo.tokenization.gguf_tokenizer import read_gguf_tokenizer

        return cls(read_gguf_tokenizer(metadata, path))

    @classmethod
    def from_hugging_face(cls, folder: str | Path) -> Tokenizer:
        """Read from the ``tokenizer.json`` of a folder and the configuration beside it.

        Raises:
            ModelNotFoundError: there is no ``tokenizer.json``.
            ModelFileError: a file is damaged.
            UnsupportedModelError: the tokenizer decodes in a way that Octavo does not know.
        """
        from octavo.tokenization.hugging_face_folder import read_hugging_face_tokenizer

        return cls(read_hugging_face_tokenizer(folder))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``.

        Args:
            add_special_tokens: put before and after it what the model wants there (BOS), unless it is there already,
                written by a chat template or by hand.

        Raises:
            RequestError: ``text`` is no string, or holds half of a surrogate pair, which is no character.
        """
        if not isinstance(text, str):
            raise RequestError(f"a prompt must be a string, not {type(text).__name__}")
        try:
            # As a batch of one: that lets other threads run meanwhile, and keeps no offsets, which takes half the time.
            ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError:
            place = next(place for place, character in enumerate(text) if "\ud800" <= character <= "\udfff")
            problem = f"the prompt holds half of a surrogate pair, {text[place]!r}, at {place}; it is no valid text"
            raise RequestError(problem) from None
        if not add_special_tokens:
            return ids
        prefix, suffix = list(self._definition.prefix_ids), list(self._definition.suffix_ids)
        if ids[: len(prefix)] != prefix:
            ids = prefix + ids
        if suffix and ids[-len(suffix) :] != suffix:
            ids += suffix
        return ids

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ``token_ids``."""
        if skip_special_tokens:
            token_ids = (token_id for token_id in token_ids if token_id not in self.special_ids)
        text = b"".join(map(self.pieces.__getitem__, token_ids)).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token; a character may need several tokens."""
        return self.pieces[token_id]

    @cached_property
    def chat_templates(self) -> Mapping[str, ChatTemplate]:
        """Name → template; the usual one is called ``default``. Each is compiled when it is first used."""
        sources = self._definition.chat_templates.items()
        return {
            name: ChatTemplate(source, self.special_tokens, name=self._definition.source) for name, source in sources
        }

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The usual chat template; ``None`` where the model has none."""
        return self.chat_templates.get("default")

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The prompt that the model's chat template makes of ``messages``; see :meth:`ChatTemplate.render`.

        A model with a template of its own for tools (named ``tool_use``) has it used when there are any.
        """
        templates = self.chat_templates
        template = (templates.get("tool_use") if tools else None) or templates.get("default")
        if template is None:
            problem = "has no chat template: it is not a chat model; give it a prompt instead of messages"
            raise ChatTemplateError(f"{self._definition.source} {problem}")
        return template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, **extra)


def load_tokenizer(checkpoint: TokenizedCheckpoint) -> Tokenizer:
    """The tokenizer of a checkpoint, whichever its format."""
    if checkpoint.format == "gguf":
        return Tokenizer.from_gguf(checkpoint.metadata, checkpoint.path)
    return Tokenizer.from_hugging_face(checkpoint.path)
