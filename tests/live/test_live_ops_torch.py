"""Every op of the torch backend, on the CPU and on a GPU where there is one, against the float32 reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.backends.base import Backend
from octavo.backends.reference.int8 import quantize_heads as reference_quantize_heads
from octavo.backends.torch import TorchBackend
from octavo.backends.torch.kv_cache import quantize_heads

pytest.register_assert_rewrite("support.op_suite")

from support.op_suite import *  # noqa: E402, F403


def test_int8_codes_are_those_of_the_reference() -> None:
    x = np.random.default_rng(1).standard_normal((40, 2, 32)).astype(np.float32)
    x[0], x[1, 0], x[2, 1, 5], x[3, 0, 0], x[4] = 0, 1e-31, np.nan, np.inf, x[4] * np.float32(1e30)
    codes, scales = (array.numpy() for array in quantize_heads(torch.from_numpy(x)))
    expected_codes, expected_scales = reference_quantize_heads(x)
    np.testing.assert_array_equal(codes, expected_codes)
    np.testing.assert_array_equal(scales, expected_scales)


@pytest.fixture(scope="module", params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return TorchBackend(request.param)
