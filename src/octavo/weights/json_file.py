"""JSON from untrusted files: objects only, no key twice, no absurd size or depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from octavo.errors import ModelFileError
from octavo.models.config_fields import shown

MAX_FILE_BYTES = 50_000_000


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises ``ModelFileError``."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ModelFileError(path, "size", f"is over {MAX_FILE_BYTES:,} bytes")
        text = path.read_bytes()
    except OSError as error:
        raise ModelFileError(path, "file", f"cannot be read: {error.strerror or error}") from error
    return parse_json(text, path, "JSON")


def parse_json(text: bytes, path: Path, field: str) -> dict[str, Any]:
    """The object in ``text``; errors name ``path`` and ``field``."""

    def object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ModelFileError(path, field, f"holds the key {shown(twice)} twice")
        return result

    try:
        value = json.loads(text, object_pairs_hook=object_without_repeats)
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, an endless number, endless brackets
        raise ModelFileError(path, field, f"is not sound JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(path, field, f"must be an object, not {shown(value)}")
    return value
