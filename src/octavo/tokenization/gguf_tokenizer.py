"""Builds a tokenizer from a GGUF file's metadata: byte-level BPE (``gpt2``) and SentencePiece BPE (``llama``)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.tokenization.byte_alphabet import bytes_of_spelling
from octavo.tokenization.definition import PieceSpelling, TokenizerDefinition
from octavo.tokenization.gguf_vocabulary import PREFIX, GgufVocabulary, TokenType
from octavo.tokenization.library_refusals import library_refusals
from octavo.tokenization.pretokenizers import PRE_TOKENIZERS, PreTokenizerSpec
from octavo.tokenization.sentencepiece import SPACE, bytes_of_piece, merges_from_scores

if TYPE_CHECKING:
    import tokenizers

_log = logging.getLogger(__name__)

# Converted chat models whose file knows only the end of the text still end a turn with one of these.
_END_OF_TURN = frozenset({"<|eot_id|>", "<|im_end|>", "<end_of_turn>"})
_SPECIAL_TOKEN_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def read_gguf_tokenizer(metadata: Mapping[str, Any], path: object) -> TokenizerDefinition:
    """The tokenizer that the file describes.

    Raises:
        ModelFileError: its metadata is damaged.
        UnsupportedModelError: it names a kind of tokenizer or a pre-tokenizer that Octavo does not have.
    """
    model = metadata.get(PREFIX + "model")
    if model is None:
        raise ModelFileError(path, PREFIX + "model", "is missing; without it text cannot be turned into tokens")
    if model == "gpt2":
        return _byte_level(GgufVocabulary.read(metadata, path))
    if model == "llama":
        return _sentencepiece(GgufVocabulary.read(metadata, path))
    raise UnsupportedModelError(f"{path}: {PREFIX}model: {model!r:.80} is not supported; Octavo reads gpt2 and llama")


def _byte_level(vocabulary: GgufVocabulary) -> TokenizerDefinition:
    """Byte-level BPE: every text has a spelling in 256 characters, and merges are listed best first.

    A byte whose character is no token (the default model lacks 21, control characters among them) is left out of the
    ids, as the model's own tokenizer leaves it out.
    """
    from tokenizers import Tokenizer, models, normalizers

    spec = _pre_tokenizer_spec(vocabulary)
    ids = _ids_of_spellings(vocabulary)
    merges = vocabulary.merges()
    for rank, (left, right) in enumerate(merges):
        if left + right not in ids:
            problem = f"entry {rank} makes {left + right!r:.80}, which is no token"
            raise ModelFileError(vocabulary.path, PREFIX + "merges", problem)
    with library_refusals(vocabulary.path, PREFIX + "merges"):
        backend = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=spec.ignores_merges))
    if spec.normalizes_nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = spec.build()

    tokens, types = vocabulary.tokens, vocabulary.types

    def spelling(token_id: int) -> bytes:
        if not 0 <= token_id < len(tokens) or types[token_id] == TokenType.UNUSED:
            return b""
        if types[token_id] == TokenType.NORMAL:
            return bytes_of_spelling(tokens[token_id])
        return tokens[token_id].encode()

    return _definition(
        vocabulary,
        backend,
        spelling=spelling,
        strips_leading_space=False,
        adds_bos=vocabulary.flag("add_bos_token", spec.adds_bos),
    )


def _pre_tokenizer_spec(vocabulary: GgufVocabulary) -> PreTokenizerSpec:
    name = vocabulary.text("pre")
    if name is None:
        _log.warning(
            "%s does not say how it cuts text (%spre is missing): cutting as the format's default does; "
            "if answers are poor, convert the model again",
            vocabulary.path,
            PREFIX,
        )
        name = "default"
    spec = PRE_TOKENIZERS.get(name)
    if spec is None:
        raise UnsupportedModelError(
            f"{vocabulary.path}: {PREFIX}pre: the pre-tokenizer {name!r:.80} is not supported; "
            f"Octavo has {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return spec


def _sentencepiece(vocabulary: GgufVocabulary) -> TokenizerDefinition:
    """SentencePiece BPE: spaces become U+2581, unknown characters become bytes, scores order the merges.

    A space is put before the text and before each stretch of text after a special token, as SentencePiece's callers do.
    """
    from tokenizers import Tokenizer, models, normalizers

    if vocabulary.flag("remove_extra_whitespaces", False):
        raise UnsupportedModelError(f"{vocabulary.path}: {PREFIX}remove_extra_whitespaces is not supported")
    ids = _ids_of_spellings(vocabulary)
    unknown_id = vocabulary.token_id("unknown_token_id")
    if unknown_id is None:
        unknown_id = next(iter(vocabulary.ids_of(TokenType.UNKNOWN)), None)
    if unknown_id is not None and vocabulary.types[unknown_id] == TokenType.UNUSED:
        raise ModelFileError(vocabulary.path, PREFIX + "unknown_token_id", f"is {unknown_id}, an unused token")
    if unknown_id is None and not all(f"<0x{byte:02X}>" in ids for byte in range(256)):
        raise ModelFileError(
            vocabulary.path, PREFIX + "tokens", "has neither a token for unknown characters nor one for each byte"
        )
    normal = {vocabulary.tokens[token_id]: token_id for token_id in vocabulary.ids_of(TokenType.NORMAL)}
    merges = merges_from_scores(normal, vocabulary.scores())
    with library_refusals(vocabulary.path, PREFIX + "tokens"):
        model = models.BPE(
            vocab=ids,
            merges=merges,
            unk_token=None if unknown_id is None else vocabulary.tokens[unknown_id],
            fuse_unk=True,
            byte_fallback=True,
        )
        backend = Tokenizer(model)
    add_space_prefix = vocabulary.flag("add_space_prefix", True)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    if add_space_prefix:
        steps.insert(0, normalizers.Prepend(SPACE))
    backend.normalizer = normalizers.Sequence(steps)

    tokens, types = vocabulary.tokens, vocabulary.types

    def spelling(token_id: int) -> bytes:
        if not 0 <= token_id < len(tokens) or types[token_id] == TokenType.UNUSED:
            return b""
        return bytes_of_piece(tokens[token_id])

    return _definition(
        vocabulary,
        backend,
        spelling=spelling,
        strips_leading_space=add_space_prefix,
        adds_bos=vocabulary.flag("add_bos_token", True),
    )


def _definition(
    vocabulary: GgufVocabulary,
    backend: tokenizers.Tokenizer,
    *,
    spelling: PieceSpelling,
    strips_leading_space: bool,
    adds_bos: bool,
) -> TokenizerDefinition:
    """What both kinds have in common: added tokens, special tokens, chat templates."""
    bos_token_id = vocabulary.token_id("bos_token_id")
    eos_token_id = vocabulary.token_id("eos_token_id")
    eos_token_ids = _eos_token_ids(vocabulary, eos_token_id)
    special_ids = {*vocabulary.ids_of(TokenType.CONTROL), *vocabulary.ids_of(TokenType.UNKNOWN), *eos_token_ids}
    if bos_token_id is not None:
        special_ids.add(bos_token_id)
    _add_tokens(backend, vocabulary, sorted(special_ids), special=True)
    user_defined = set(vocabulary.ids_of(TokenType.USER_DEFINED)) - special_ids
    _add_tokens(backend, vocabulary, sorted(user_defined), special=False)

    adds_eos = vocabulary.flag("add_eos_token", False)
    return TokenizerDefinition(
        source=str(vocabulary.path),
        backend=backend,
        vocab_size=len(vocabulary.tokens),
        spelling=spelling,
        strips_leading_space=strips_leading_space,
        bos_token_id=bos_token_id,
        eos_token_ids=eos_token_ids,
        special_ids=frozenset(special_ids),
        prefix_ids=_end_token(vocabulary, "add_bos_token", bos_token_id) if adds_bos else (),
        suffix_ids=_end_token(vocabulary, "add_eos_token", eos_token_id) if adds_eos else (),
        special_tokens=_special_tokens(vocabulary),
        chat_templates=_chat_templates(vocabulary),
    )


def _end_token(vocabulary: GgufVocabulary, flag: str, token_id: int | None) -> tuple[int]:
    if token_id is None:
        key = flag.removeprefix("add_") + "_id"
        raise ModelFileError(vocabulary.path, PREFIX + key, f"is missing, though {PREFIX}{flag} needs it")
    return (token_id,)


def _eos_token_ids(vocabulary: GgufVocabulary, eos_token_id: int | None) -> tuple[int, ...]:
    found = {eos_token_id, vocabulary.token_id("eot_token_id"), vocabulary.token_id("eom_token_id")}
    if vocabulary.token_id("eot_token_id") is None:
        found.update(i for i in vocabulary.ids_of(TokenType.CONTROL) if vocabulary.tokens[i] in _END_OF_TURN)
    return tuple(sorted(token_id for token_id in found if token_id is not None))


def _add_tokens(
    backend: tokenizers.Tokenizer, vocabulary: GgufVocabulary, token_ids: Iterable[int], *, special: bool
) -> None:
    """Let text that spells one of these tokens become that token, before anything cuts it."""
    from tokenizers import AddedToken

    texts = (vocabulary.tokens[token_id] for token_id in token_ids)
    backend.add_tokens([AddedToken(text, normalized=False, special=special) for text in texts if text])


def _special_tokens(vocabulary: GgufVocabulary) -> dict[str, str]:
    named = {name: vocabulary.token_id(key) for name, key in _SPECIAL_TOKEN_KEYS.items()}
    return {name: vocabulary.tokens[token_id] for name, token_id in named.items() if token_id is not None}


def _chat_templates(vocabulary: GgufVocabulary) -> dict[str, str]:
    """``tokenizer.chat_template`` is the usual one; others are ``tokenizer.chat_template.NAME``."""
    key = "tokenizer.chat_template"
    templates: dict[str, str] = {}
    for name, value in vocabulary.metadata.items():
        if name == key or name.startswith(key + "."):
            if not isinstance(value, str):
                raise ModelFileError(vocabulary.path, name, f"must be a string, not {type(value).__name__}")
            templates[name[len(key) + 1 :] or "default"] = value
    return templates


def _ids_of_spellings(vocabulary: GgufVocabulary) -> dict[str, int]:
    """Spelling → id, of all tokens that text can become."""
    ids = dict(zip(vocabulary.tokens, range(len(vocabulary.tokens)), strict=True))
    for token_id in vocabulary.ids_of(TokenType.UNUSED):
        del ids[vocabulary.tokens[token_id]]
    return ids
