"""Every op of the torch backend, on the CPU and on a GPU where there is one, against the float32 reference."""

from __future__ import annotations

import pytest
import torch

from octavo.backends.base import Backend
from octavo.backends.torch import TorchBackend

pytest.register_assert_rewrite("support.op_suite")

from support.op_suite import *  # noqa: E402, F403


@pytest.fixture(scope="module", params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return TorchBackend(request.param)
