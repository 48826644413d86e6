"""Every op of the backends that need no extra, against the float32 reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.backends.base import Backend
from octavo.backends.reference import ReferenceBackend
from octavo.backends.registry import create_backend
from octavo.config import BackendConfig

pytest.register_assert_rewrite("support.op_suite")

from support.op_suite import *  # noqa: E402, F403

BACKENDS: dict[str, Callable[[], Backend]] = {
    "reference-native": lambda: ReferenceBackend("native"),
    "native": lambda: create_backend(BackendConfig(backend="native")),
}


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]()
