"""Reads a tokenizer from a Hugging Face model folder.

``tokenizer.json`` has the algorithm; ``tokenizer_config.json`` and ``special_tokens_map.json`` name the special tokens;
``generation_config.json`` knows what ends an answer; the chat template is in ``chat_template.jinja`` or
``tokenizer_config.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from octavo.tokenization.byte_alphabet import bytes_of_spelling
from octavo.tokenization.definition import PieceSpelling, TokenizerDefinition
from octavo.tokenization.library_refusals import library_refusals
from octavo.tokenization.sentencepiece import bytes_of_piece

if TYPE_CHECKING:
    import tokenizers

MAX_CONFIG_BYTES = 64 * 2**20
MAX_TOKENIZER_BYTES = 512 * 2**20

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_hugging_face_tokenizer(folder: str | Path) -> TokenizerDefinition:
    """The tokenizer of a model folder.

    Raises:
        ModelNotFoundError: the folder has no ``tokenizer.json``.
        ModelFileError: a file is damaged.
        UnsupportedModelError: the tokenizer decodes in a way that Octavo does not know.
    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    backend = _load_backend(path)
    config = _read_json(folder / "tokenizer_config.json")
    named = _named_tokens(folder, config)
    _add_configured_tokens(backend, folder, config)
    _mark_special(backend, [*named.values(), *_additional_special_tokens(folder, config)])

    spelling, strips_leading_space = _spelling(backend, path)
    bos_token_id = _id_of(backend, named.get("bos_token"))
    eos_token_id = _id_of(backend, named.get("eos_token"))
    prefix_ids, suffix_ids = _sequence_ends(backend, config, bos_token_id, eos_token_id)
    added = backend.get_added_tokens_decoder()
    return TokenizerDefinition(
        source=str(folder),
        backend=backend,
        vocab_size=backend.get_vocab_size(with_added_tokens=True),
        spelling=spelling,
        strips_leading_space=strips_leading_space,
        bos_token_id=bos_token_id,
        eos_token_ids=_eos_token_ids(folder, eos_token_id),
        special_ids=frozenset(token_id for token_id, token in added.items() if token.special),
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        special_tokens=named,
        chat_templates=_chat_templates(folder, config),
    )


def _load_backend(path: Path) -> tokenizers.Tokenizer:
    import tokenizers

    if not path.is_file():
        advice = ""
        if (path.parent / "tokenizer.model").is_file():
            advice = (
                "; transformers makes one of its tokenizer.model: AutoTokenizer.from_pretrained(…).save_pretrained(…)"
            )
        raise ModelNotFoundError(f"{path.parent} has no {path.name}{advice}")
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise ModelFileError(path, "size", f"is over {MAX_TOKENIZER_BYTES} bytes")
    with library_refusals(path, "content"):
        backend = tokenizers.Tokenizer.from_file(str(path))
    # A prompt is never cut or filled up in silence, whatever the file says.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_json(path: Path) -> dict[str, Any]:
    """A configuration file's object; empty when there is no such file."""
    if not path.is_file():
        return {}
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise ModelFileError(path, "size", f"is over {MAX_CONFIG_BYTES} bytes")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, "content", f"is no JSON: {error!s:.200}") from error
    if not isinstance(value, dict):
        raise ModelFileError(path, "content", f"must be an object, not {type(value).__name__}")
    return value


def _token_text(path: Path, field: str, value: object) -> str | None:
    """A token written as a string, or as an object with its ``content``."""
    if isinstance(value, Mapping):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise ModelFileError(path, field, f"must be a token, not {value!r:.80}")
    return value or None


def _named_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """``bos_token`` and its kin → text; the newer file wins."""
    named: dict[str, str] = {}
    for name, fields in (
        ("special_tokens_map.json", _read_json(folder / "special_tokens_map.json")),
        ("tokenizer_config.json", config),
    ):
        for key in _NAMED_TOKENS:
            text = _token_text(folder / name, key, fields.get(key))
            if text is not None:
                named[key] = text
    return named


def _additional_special_tokens(folder: Path, config: dict[str, Any]) -> list[str]:
    found = []
    for name, fields in (
        ("special_tokens_map.json", _read_json(folder / "special_tokens_map.json")),
        ("tokenizer_config.json", config),
    ):
        values = fields.get("additional_special_tokens") or []
        if not isinstance(values, list):
            raise ModelFileError(folder / name, "additional_special_tokens", "must be an array")
        found += [_token_text(folder / name, "additional_special_tokens", value) for value in values]
    return [text for text in found if text]


def _add_configured_tokens(backend: tokenizers.Tokenizer, folder: Path, config: dict[str, Any]) -> None:
    """Tokens that only ``tokenizer_config.json`` has; their ids must be the ones it gives."""
    from tokenizers import AddedToken

    path = folder / "tokenizer_config.json"
    entries = config.get("added_tokens_decoder") or {}
    if not isinstance(entries, dict):
        raise ModelFileError(path, "added_tokens_decoder", "must be an object")
    known = {token.content: token.special for token in backend.get_added_tokens_decoder().values()}
    for key, fields in sorted(entries.items(), key=lambda entry: (len(entry[0]), entry[0])):
        text = _token_text(path, "added_tokens_decoder", fields)
        if text is None or not isinstance(fields, dict):
            raise ModelFileError(path, f"added_tokens_decoder.{key}", "is no token")
        special = fields.get("special") is True
        if known.get(text) == special:
            continue
        flags = {name: fields.get(name) is True for name in ("single_word", "lstrip", "rstrip", "normalized")}
        backend.add_tokens([AddedToken(text, special=special, **flags)])
        if str(backend.token_to_id(text)) != key:
            problem = f"is {text!r:.80}, which tokenizer.json places at {backend.token_to_id(text)}"
            raise ModelFileError(path, f"added_tokens_decoder.{key}", problem)


def _mark_special(backend: tokenizers.Tokenizer, texts: list[str]) -> None:
    """A token with a special name is special, also when ``tokenizer.json`` forgot to say so."""
    from tokenizers import AddedToken

    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    for text in dict.fromkeys(texts):
        # A name for a token that the vocabulary lacks is not a reason to grow the vocabulary beyond the model's.
        if text not in special and backend.token_to_id(text) is not None:
            backend.add_tokens([AddedToken(text, special=True, normalized=False)])


def _spelling(backend: tokenizers.Tokenizer, path: Path) -> tuple[PieceSpelling, bool]:
    """How tokens are spelled, read off the decoder; and whether the text's first space belongs to the encoding."""
    steps = _decoder_steps(backend)
    kinds = [step.get("type") for step in steps]
    added = {token_id: token.content for token_id, token in backend.get_added_tokens_decoder().items()}

    if kinds == ["ByteLevel"]:

        def spelling(token_id: int) -> bytes:
            text = added.get(token_id)
            if text is not None:
                return text.encode()
            piece = backend.id_to_token(token_id) if token_id >= 0 else None
            return b"" if piece is None else bytes_of_spelling(piece)

        return spelling, False

    if kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):

        def spelling_of_piece(token_id: int) -> bytes:
            piece = backend.id_to_token(token_id) if token_id >= 0 else None
            return b"" if piece is None else bytes_of_piece(piece)

        return spelling_of_piece, kinds[-1] == "Strip"

    found = " + ".join(map(str, kinds)) or "none"
    raise UnsupportedModelError(f"{path}: decoder: {found} is not supported; Octavo has byte-level and SentencePiece")


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    decoder = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return steps


def _id_of(backend: tokenizers.Tokenizer, text: str | None) -> int | None:
    return None if text is None else backend.token_to_id(text)


def _sequence_ends(
    backend: tokenizers.Tokenizer, config: dict[str, Any], bos_token_id: int | None, eos_token_id: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What goes before and after a prompt: as the post-processor does it, unless the configuration says otherwise."""
    probe = "a"
    plain = backend.encode(probe, add_special_tokens=False).ids
    dressed = backend.encode(probe, add_special_tokens=True).ids
    places = range(len(dressed) - len(plain) + 1)
    start = next((place for place in places if dressed[place : place + len(plain)] == plain), 0)
    prefix, suffix = tuple(dressed[:start]), tuple(dressed[start + len(plain) :])

    add_bos, add_eos = config.get("add_bos_token"), config.get("add_eos_token")
    if bos_token_id is not None and isinstance(add_bos, bool) and add_bos != (bos_token_id in prefix):
        prefix = (bos_token_id, *prefix) if add_bos else tuple(i for i in prefix if i != bos_token_id)
    if eos_token_id is not None and isinstance(add_eos, bool) and add_eos != (eos_token_id in suffix):
        suffix = (*suffix, eos_token_id) if add_eos else tuple(i for i in suffix if i != eos_token_id)
    return prefix, suffix


def _eos_token_ids(folder: Path, eos_token_id: int | None) -> tuple[int, ...]:
    """The tokenizer's own end of sequence, and those with which generation ends."""
    found = set() if eos_token_id is None else {eos_token_id}
    path = folder / "generation_config.json"
    if not path.is_file():
        path = folder / "config.json"
    value = _read_json(path).get("eos_token_id")
    for token_id in value if isinstance(value, list) else [value]:
        if token_id is None:
            continue
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise ModelFileError(path, "eos_token_id", f"must be a token id, not {token_id!r:.80}")
        found.add(token_id)
    return tuple(sorted(found))


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Name → source. Files of their own win over ``tokenizer_config.json``, which has one or a list of named ones."""
    path = folder / "tokenizer_config.json"
    value = config.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(value, str):
        templates["default"] = value
    elif isinstance(value, list):
        for entry in value:
            name = entry.get("name") if isinstance(entry, dict) else None
            source = entry.get("template") if isinstance(entry, dict) else None
            if not isinstance(name, str) or not isinstance(source, str):
                raise ModelFileError(path, "chat_template", "a named template needs a name and a template")
            templates[name] = source
    elif value is not None:
        raise ModelFileError(path, "chat_template", f"must be a string or an array, not {type(value).__name__}")
    files = [("default", folder / "chat_template.jinja")]
    files += [(file.stem, file) for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))]
    for name, file in files:
        if file.is_file():
            templates[name] = _read_text(file)
    return templates


def _read_text(path: Path) -> str:
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise ModelFileError(path, "size", f"is over {MAX_CONFIG_BYTES} bytes")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(path, "content", f"is not UTF-8: {error}") from error
