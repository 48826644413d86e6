"""API keys: who asks, decided in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from octavo.errors import ConfigError

MIN_KEY_CHARACTERS = 8


class ApiKeys:
    """The keys that are accepted. Only their digests are kept.

    A key may have a name, ``name:key``: keys of one name share one fair share of the engine.
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._tenants: dict[bytes, str] = {}
        for entry in entries:
            name, _, key = entry.strip().rpartition(":")
            if len(key) < MIN_KEY_CHARACTERS:
                raise ConfigError(f"an API key has {len(key)} characters; at least {MIN_KEY_CHARACTERS} are needed")
            digest = hashlib.sha256(key.encode()).digest()
            self._tenants[digest] = name or digest.hex()[:12]

    @classmethod
    def read(cls, path: Path | None, variable: str | None) -> ApiKeys:
        """From a file, one key a line, ``#`` begins a comment; and from a variable's value, separated by commas."""
        entries = variable.split(",") if variable else []
        if path is not None:
            try:
                entries += [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}: the API keys cannot be read: {error}") from None
        keys = cls(entry for entry in entries if entry.strip())
        if (path is not None or variable) and not keys:
            raise ConfigError("there are no API keys in the file or variable that shall have them")
        return keys

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def tenant(self, authorization: str | None) -> str | None:
        """Whose key an ``Authorization`` header has; ``None``: nobody's. Without keys everybody is ``""``."""
        if not self._tenants:
            return ""
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        found = None
        for known, tenant in self._tenants.items():  # all of them, however early one fits
            if hmac.compare_digest(known, digest):
                found = tenant
        return found if scheme.lower() == "bearer" else None
