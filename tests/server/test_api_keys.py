"""API keys: files, variables, names."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.server.auth import ApiKeys


def test_without_keys_everybody_may_ask() -> None:
    assert ApiKeys().tenant(None) == ""
    assert ApiKeys().tenant("Bearer anything") == ""


def test_a_key_leads_to_its_name(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nalice:key-of-alice\nnameless-key\n\n")
    keys = ApiKeys.read(path, "bob:key-of-bob, other-nameless")
    assert keys.tenant("Bearer key-of-alice") == "alice"
    assert keys.tenant("bearer key-of-bob") == "bob"
    nameless = {keys.tenant("Bearer nameless-key"), keys.tenant("Bearer other-nameless")}
    assert len(nameless) == 2
    assert None not in nameless


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer key-of-alic", "key-of-alice", "Token key-of-alice"])
def test_other_headers_lead_nowhere(header: str | None) -> None:
    assert ApiKeys(["alice:key-of-alice"]).tenant(header) is None


def test_keys_are_not_kept() -> None:
    assert "key-of-alice" not in repr(vars(ApiKeys(["alice:key-of-alice"])))


def test_no_keys_where_keys_shall_be_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# nobody\n")
    for arguments in ((path, None), (None, " , "), (tmp_path / "missing", None)):
        with pytest.raises(ConfigError):
            ApiKeys.read(*arguments)
    with pytest.raises(ConfigError, match="at least 8"):
        ApiKeys(["short"])
