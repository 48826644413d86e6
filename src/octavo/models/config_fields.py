"""Checked reading of a model's header: every value has the right type and a sane size, or the error names its field."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from octavo.errors import ModelFileError, UnsupportedModelError

MAX_COUNT = 1 << 31
"""No size in a header reaches this."""


class ConfigFields:
    """A mapping from an untrusted file, read through checks.

    A field that is absent or null takes the default, or is an error if there is none. ``prefix`` is part of every name:
    ``llama.`` for GGUF, nothing for ``config.json``.
    """

    def __init__(self, values: Mapping[str, Any], path: Path, prefix: str = "") -> None:
        self.values = values
        self.path = path
        self.prefix = prefix

    def wrong(self, name: str, problem: str) -> NoReturn:
        """Raise: the file is damaged or contradicts itself."""
        raise ModelFileError(self.path, self.prefix + name, problem)

    def unsupported(self, name: str, problem: str) -> NoReturn:
        """Raise: the file is sound, Octavo lacks something."""
        raise UnsupportedModelError(f"{self.path}: {self.prefix}{name}: {problem}")

    def get(self, name: str) -> Any:
        """The raw value; ``None`` if absent."""
        return self.values.get(self.prefix + name)

    def count(self, name: str, default: int | None = None, *, at_least: int = 1, limit: int = MAX_COUNT) -> int:
        """An integer from ``at_least`` to ``limit``."""
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(name, f"must be an integer, not {shown(value)}")
        if not at_least <= value <= limit:
            self.wrong(name, f"must be between {at_least} and {limit:,}, not {shown(value)}")
        return value

    def optional_count(self, name: str) -> int | None:
        """An integer from 1; ``None`` if absent."""
        return None if self.get(name) is None else self.count(name)

    def number(self, name: str, default: float | None = None, *, above: float, limit: float = 1e15) -> float:
        """A finite number, greater than ``above`` and at most ``limit``."""
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong(name, f"must be a number, not {shown(value)}")
        if not above < value <= limit:  # nor is nan
            self.wrong(name, f"must be above {above:g} and at most {limit:g}, not {shown(value)}")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """True or false, and no number in their place."""
        value = self._required(name, default)
        if not isinstance(value, bool):
            self.wrong(name, f"must be true or false, not {shown(value)}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._required(name, default)
        if not isinstance(value, str):
            self.wrong(name, f"must be a string, not {shown(value)}")
        return value

    def section(self, name: str) -> dict[str, Any] | None:
        """A nested object; ``None`` if absent or empty."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            self.wrong(name, f"must be an object, not {shown(value)}")
        return value or None

    def token_ids(self, name: str, vocab_size: int) -> tuple[int, ...]:
        """One token id or a list of them; empty if absent."""
        value = self.get(name)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
                self.wrong(name, f"must hold token ids from 0 to {vocab_size - 1:,}, not {shown(token_id)}")
        return tuple(dict.fromkeys(ids))

    def token_id(self, name: str, vocab_size: int) -> int | None:
        """One token id; ``None`` if absent."""
        ids = self.token_ids(name, vocab_size)
        if len(ids) > 1:
            self.wrong(name, f"must be one token id, not {shown(list(ids))}")
        return ids[0] if ids else None

    def must_be_neutral(self, neutral: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse fields that change what a model computes, unless absent, null or one of their neutral values."""
        for name, values in neutral.items():
            value = self.get(name)
            if value is not None and value not in values:
                self.unsupported(name, f"{shown(value)} is not supported")

    def _required(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is None:
            value = default
        if value is None:
            self.wrong(name, "is missing")
        return value


def shown(value: object) -> str:
    """A value for a message, cut to a sane length."""
    text = _REPR.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


_REPR = reprlib.Repr()
_REPR.maxstring = 80
