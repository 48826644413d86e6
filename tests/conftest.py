"""What all tests share."""

from __future__ import annotations

import pytest

from octavo.scheduler.health import MemoryHealth


@pytest.fixture(autouse=True)
def _raise_on_breach(monkeypatch: pytest.MonkeyPatch) -> None:
    """A breach of the memory's accounts fails the test instead of being healed."""
    monkeypatch.setattr(MemoryHealth, "raise_on_breach", True)
