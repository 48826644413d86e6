"""Every block type decodes to what the format's own Python package decodes it to, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends import dequantize as module
from octavo.backends.dequantize import dequantize
from octavo.backends.host_tensor import HostTensor, TensorType

GOLDEN = Path(__file__).parent.parent / "golden" / "dequantize.npz"


@pytest.mark.parametrize("type", list(TensorType), ids=lambda type: type.label)
def test_every_type_decodes_to_the_golden_values(type: TensorType) -> None:
    with np.load(GOLDEN) as golden:
        data, expected = golden[f"{type.label}.data"], golden[f"{type.label}.expected"]
    decoded = dequantize(type, data, expected.shape[1])
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, expected)


def test_a_slab_boundary_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with np.load(GOLDEN) as golden:
        data, expected = golden["Q4_K.data"], golden["Q4_K.expected"]
    monkeypatch.setattr(module, "SLAB_ELEMENTS", 512)
    np.testing.assert_array_equal(dequantize(TensorType.Q4_K, data, 512), expected)
    np.testing.assert_array_equal(dequantize(TensorType.Q4_K, data[::2], 512), expected[::2])


def test_a_host_tensor_decodes_to_its_shape() -> None:
    vector = HostTensor.from_array("norm", np.arange(5, dtype=np.float32))
    assert vector.dequantize().tolist() == [0, 1, 2, 3, 4]
    matrix = HostTensor.from_array("proj", np.arange(6, dtype=np.float32).reshape(2, 3))
    assert matrix.take_rows(np.array([1, 0, 1])).dequantize().tolist() == [[3, 4, 5], [0, 1, 2], [3, 4, 5]]


def test_no_rows_decode_to_no_rows() -> None:
    assert dequantize(TensorType.Q8_0, np.empty((0, 68), np.uint8), 64).shape == (0, 64)
