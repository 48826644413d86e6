"""What separates requests whose equal tokens must not share blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Namespace:
    """The part of the prefix cache that a request reads and fills.

    Attributes:
        salt: chosen by the caller; tenants with different salts cannot tell what the other asked.
        adapter: identity and version of whatever changes the weights.
    """

    salt: str | None = None
    adapter: str | None = None


DEFAULT_NAMESPACE = Namespace()
