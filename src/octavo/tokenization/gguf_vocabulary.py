"""The ``tokenizer.ggml.*`` keys of a GGUF file, read with suspicion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import compress
from operator import methodcaller
from typing import Any

from octavo.errors import ModelFileError

PREFIX = "tokenizer.ggml."


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``; the numbers are the format's."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """A checked view of a GGUF file's tokenizer metadata.

    Attributes:
        path: the file, for messages.
        metadata: all its keys.
        tokens: id → spelling, no two alike.
        types: id → kind; all normal when the file has no types.
    """

    path: object
    metadata: Mapping[str, Any]
    tokens: list[str]
    types: list[int]

    @classmethod
    def read(cls, metadata: Mapping[str, Any], path: object) -> GgufVocabulary:
        """Raises:
        ModelFileError: a key is missing, of the wrong type, or contradicts another.
        """
        tokens = _strings(metadata, path, "tokens")
        if len(set(tokens)) != len(tokens):
            raise ModelFileError(path, PREFIX + "tokens", "two tokens have the same spelling")
        types = _token_types(metadata, path, len(tokens))
        return cls(path, metadata, tokens, types)

    def ids_of(self, kind: TokenType) -> list[int]:
        """The tokens of one kind, ascending."""
        # Compared and picked by C code: a vocabulary has 50,000 tokens and more.
        return list(compress(range(len(self.types)), map(int(kind).__eq__, self.types)))

    def text(self, key: str) -> str | None:
        """A key with a string; ``None`` where the file has none."""
        value = self.metadata.get(PREFIX + key)
        if value is not None and not isinstance(value, str):
            raise ModelFileError(self.path, PREFIX + key, f"must be a string, not {type(value).__name__}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A key that says yes or no."""
        value = self.metadata.get(PREFIX + key, default)
        if not isinstance(value, bool):
            raise ModelFileError(self.path, PREFIX + key, f"must be true or false, not {value!r:.80}")
        return value

    def token_id(self, key: str) -> int | None:
        """A key that names one token; ``None`` where the file has none."""
        value = self.metadata.get(PREFIX + key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelFileError(self.path, PREFIX + key, f"must be a token id, not {value!r:.80}")
        if not 0 <= value < len(self.tokens):
            raise ModelFileError(self.path, PREFIX + key, f"is {value}, but the ids end at {len(self.tokens) - 1}")
        return value

    def merges(self) -> list[tuple[str, str]]:
        """The pairs that byte-level BPE merges, best first."""
        merges = _strings(self.metadata, self.path, "merges", may_be_empty=True)
        try:
            return [(left, right) for left, right in map(methodcaller("split", " "), merges)]
        except ValueError:
            rank = next(rank for rank, merge in enumerate(merges) if merge.count(" ") != 1)
            problem = f"entry {rank} is no pair of tokens: {merges[rank]!r:.80}"
            raise ModelFileError(self.path, PREFIX + "merges", problem) from None

    def scores(self) -> list[float]:
        """The log probabilities that order a SentencePiece vocabulary's merges."""
        values = _numbers(self.metadata, self.path, "scores", len(self.tokens))
        if not all(map(math.isfinite, values)):
            raise ModelFileError(self.path, PREFIX + "scores", "holds a number that is not finite")
        return values


def _sequence(metadata: Mapping[str, Any], path: object, key: str) -> list[Any]:
    value = metadata.get(PREFIX + key)
    if value is None:
        raise ModelFileError(path, PREFIX + key, "is missing; without it text cannot be turned into tokens")
    tolist = getattr(value, "tolist", None)  # an array's own numbers become Python's, at once
    if tolist is not None:
        value = tolist()
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ModelFileError(path, PREFIX + key, f"must be an array, not {type(value).__name__}")
    return value if isinstance(value, list) else list(value)


def _strings(metadata: Mapping[str, Any], path: object, key: str, *, may_be_empty: bool = False) -> list[str]:
    values = _sequence(metadata, path, key)
    if not values and not may_be_empty:
        raise ModelFileError(path, PREFIX + key, "is empty")
    if set(map(type, values)) - {str}:
        raise ModelFileError(path, PREFIX + key, "must hold nothing but strings")
    return values


def _numbers(metadata: Mapping[str, Any], path: object, key: str, count: int) -> list[Any]:
    values = _sequence(metadata, path, key)
    if set(map(type, values)) - {int, float}:
        raise ModelFileError(path, PREFIX + key, "must hold nothing but numbers")
    if len(values) != count:
        raise ModelFileError(path, PREFIX + key, f"has {len(values)} entries for {count} tokens")
    return values


def _token_types(metadata: Mapping[str, Any], path: object, count: int) -> list[int]:
    if PREFIX + "token_type" not in metadata:
        return [TokenType.NORMAL] * count
    types = _numbers(metadata, path, "token_type", count)
    unknown = set(types) - set(TokenType)
    if unknown:
        raise ModelFileError(path, PREFIX + "token_type", f"holds {min(unknown)}, which is no type of token")
    return types
