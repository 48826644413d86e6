"""Tiny models with a tokenizer, so that the whole engine runs in milliseconds.

The weights are those of ``tests/golden/models``: random, 128 tokens, 256 positions. The tokenizer is byte-level with
three kinds of tokens: single characters, words, and single bytes of characters that need two to four, so that random
output splits characters and strings between tokens at every turn.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from octavo.tokenization.byte_alphabet import bytes_of_spelling

FOLDER = Path(__file__).parents[1] / "golden" / "models"
NUM_TOKENS = 128
EOS, EOS_ID = "<eos>", 0
MARKER, MARKER_ID = "<marker>", 1
MERGES = [
    ("t", "h"), ("th", "e"), (" ", "the"), ("i", "n"), ("in", "g"), ("s", "t"), ("st", "o"), ("sto", "p"),
    (" ", "stop"), ("a", "b"), ("ab", "c"), ("b", "c"), ("bc", "a"), ("c", "a"), ("S", "T"), ("O", "P"),
]  # fmt: skip
CHARACTERS = "é€ž漢字🙂🎈"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tiny_model(folder: Path, name: str = "llama") -> Path:
    """A model folder made of golden weights and a tokenizer; returns ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").symlink_to(FOLDER / name / "model.safetensors")
    config = json.loads((FOLDER / name / "config.json").read_text())
    write_json(folder / "config.json", {**config, "eos_token_id": EOS_ID})
    write_json(folder / "tokenizer.json", _tokenizer())
    write_json(folder / "tokenizer_config.json", {"eos_token": EOS, "chat_template": CHAT_TEMPLATE})
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def _tokenizer() -> dict[str, Any]:
    letters = {bytes_of_spelling(letter): letter for letter in tokenizers.pre_tokenizers.ByteLevel.alphabet()}
    merges = [["".join(letters[bytes([byte])] for byte in part.encode()) for part in pair] for pair in MERGES]
    single = sorted({bytes([byte]) for byte in CHARACTERS.encode()})
    single += [
        bytes([byte]) for byte in b"\n etaoinshrdlucmfgypwbvkxjqzETAOINSHRDLUCMFGYPWBVKXJQZ.,:;!?0123456789-()[]"
    ]
    single += [bytes([byte]) for byte in b"{}<>|/+=*_%@#$&~^"]
    tokens = [EOS, MARKER, *map(letters.__getitem__, single), *map("".join, merges)]
    assert len(tokens) == NUM_TOKENS, len(tokens)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": EOS_ID, "content": EOS, **flags}, {"id": MARKER_ID, "content": MARKER, **flags}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": merges,
        },
    }
