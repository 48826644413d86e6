"""A tensor as it lies in a model file: bytes, shape and encoding, not yet in any backend's memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt


class TensorType(Enum):
    """How elements are encoded: ``(elements per encoded block, bytes per encoded block)``.

    The quantised ones are GGUF's; ``octavo.backends.dequantize`` spells out each of their layouts.
    """

    F32 = ("F32", 1, 4)
    F16 = ("F16", 1, 2)
    BF16 = ("BF16", 1, 2)
    Q4_0 = ("Q4_0", 32, 18)
    Q4_1 = ("Q4_1", 32, 20)
    Q5_0 = ("Q5_0", 32, 22)
    Q5_1 = ("Q5_1", 32, 24)
    Q8_0 = ("Q8_0", 32, 34)
    Q2_K = ("Q2_K", 256, 84)
    Q3_K = ("Q3_K", 256, 110)
    Q4_K = ("Q4_K", 256, 144)
    Q5_K = ("Q5_K", 256, 176)
    Q6_K = ("Q6_K", 256, 210)
    IQ4_NL = ("IQ4_NL", 32, 18)
    IQ4_XS = ("IQ4_XS", 256, 136)

    def __init__(self, label: str, block_elements: int, block_bytes: int) -> None:
        self.label = label
        self.block_elements = block_elements
        self.block_bytes = block_bytes

    @property
    def is_quantized(self) -> bool:
        """Whether elements share scales."""
        return self.block_elements > 1

    def row_bytes(self, num_columns: int) -> int:
        """Bytes of a row of ``num_columns`` elements, which must be a multiple of ``block_elements``."""
        assert num_columns % self.block_elements == 0, (self.label, num_columns)
        return num_columns // self.block_elements * self.block_bytes


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A matrix or vector in host memory, usually a view of a memory-mapped file.

    Attributes:
        name: its name in the file, for error messages.
        shape: outermost dimension first: ``(rows, columns)`` = ``(out_features, in_features)``, or ``(n,)``.
        data: uint8 ``[rows, row_bytes]``; a vector is one row.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        rows = self.shape[0] if len(self.shape) == 2 else 1
        expected = (rows, self.type.row_bytes(self.shape[-1]))
        assert self.data.shape == expected, (self.name, self.data.shape, expected)

    @property
    def num_bytes(self) -> int:
        """Of the encoded elements."""
        return int(self.data.nbytes)

    @classmethod
    def from_array(cls, name: str, array: npt.NDArray[np.float32]) -> HostTensor:
        """Wrap a float32 array of one or two dimensions."""
        array = np.ascontiguousarray(array, dtype=np.float32)
        rows = array.reshape(-1, array.shape[-1])
        return cls(name, TensorType.F32, array.shape, rows.view(np.uint8))

    def take_rows(self, rows: npt.NDArray[np.int64]) -> HostTensor:
        """The matrix of these rows, in this order (a copy)."""
        return HostTensor(self.name, self.type, (len(rows), self.shape[1]), self.data[rows])

    def dequantize(self) -> npt.NDArray[np.float32]:
        """The elements as float32, ``[*shape]``. Exact for every type: each is at most fp16 scale × integer."""
        from octavo.backends.dequantize import dequantize

        return dequantize(self.type, self.data, self.shape[-1]).reshape(self.shape)
