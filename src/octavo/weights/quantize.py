"""Quantise a checkpoint of plain numbers while it is loaded, into block types that its backend computes with anyway.

``int8`` makes every matrix ``Q8_0``: groups of 32 elements along a row, codes of -127 … 127, a half-precision scale.
``int4`` makes the matrices of the layers ``Q4_1``: groups of 32, codes of 0 … 15, a half-precision scale and minimum;
those of the vocabulary, on which every answer depends most, become ``Q8_0``. Vectors stay as they are.

The codes are made here, once, so every backend computes with the same ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from octavo.backends.base import HostTensor, TensorType
from octavo.errors import ConfigError, ModelFileError
from octavo.weights.checkpoint import Checkpoint

Float32 = npt.NDArray[np.float32]
Blocks = npt.NDArray[np.uint8]

GROUP = 32
SLAB_ELEMENTS = 1 << 16
"""Elements at a time, so that what lies between a plain number and its code stays in the processor's caches."""
NUM_REFITS = 2
"""How often scale and minimum of int4 are fitted to the codes that they gave; each time the error shrinks by less."""


def quantize_checkpoint(checkpoint: Checkpoint, quantization: str) -> Checkpoint:
    """The same model with its matrices quantised: ``int8`` or ``int4``. Codes are made when a tensor is asked for.

    Raises:
        ConfigError: a matrix is quantised already, or its rows are not whole groups of 32.
    """
    tensors = QuantizedTensors(checkpoint, quantization)
    num_bytes: dict[str, int] = {}
    for name, shape in checkpoint.config.tensor_shapes().items():
        type = tensors.type_of(name)
        rows = shape[0] if len(shape) == 2 else 1
        num_bytes[type.label] = num_bytes.get(type.label, 0) + rows * type.row_bytes(shape[-1])
    bytes_by_type = dict(sorted(num_bytes.items(), key=lambda item: -item[1]))
    return dataclasses.replace(checkpoint, tensors=tensors, bytes_by_type=bytes_by_type)


class QuantizedTensors(Mapping[str, HostTensor]):
    """A checkpoint's tensors, its matrices quantised when they are asked for."""

    def __init__(self, checkpoint: Checkpoint, quantization: str) -> None:
        quantized = [label for label in checkpoint.bytes_by_type if TensorType[label].is_quantized]
        if quantized:
            types = ", ".join(quantized)
            raise ConfigError(
                f"{checkpoint.path} is quantised already ({types}); leave out quantization={quantization}"
            )
        for name, shape in checkpoint.config.tensor_shapes().items():
            if len(shape) == 2 and shape[1] % GROUP:
                raise ConfigError(
                    f"{checkpoint.path}: {name} has rows of {shape[1]}, and {quantization} needs whole groups of "
                    f"{GROUP}; leave out quantization={quantization}"
                )
        self._tensors = checkpoint.tensors
        self._shapes = checkpoint.config.tensor_shapes()
        self._path = checkpoint.path
        self._layer_type = TensorType.Q8_0 if quantization == "int8" else TensorType.Q4_1

    def type_of(self, name: str) -> TensorType:
        """What the tensor becomes."""
        if len(self._shapes[name]) == 1:
            return self._tensors[name].type
        is_in_layer = name.startswith("model.layers.")
        return self._layer_type if is_in_layer else TensorType.Q8_0

    def __getitem__(self, name: str) -> HostTensor:
        tensor, type = self._tensors[name], self.type_of(name)
        if tensor.type is type:
            return tensor
        try:
            return quantize(tensor, type)
        except FloatingPointError as error:
            raise ModelFileError(self._path, name, str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def quantize(tensor: HostTensor, type: TensorType) -> HostTensor:
    """A matrix of plain numbers as ``Q8_0`` or ``Q4_1``.

    Raises:
        FloatingPointError: an element is not finite, or larger than half-precision scales reach.
    """
    rows, columns = tensor.shape
    encode = _ENCODERS[type]
    data = np.empty((rows, type.row_bytes(columns)), np.uint8)
    slab_rows = max(1, SLAB_ELEMENTS // columns)
    for start in range(0, rows, slab_rows):
        slab = slice(start, min(start + slab_rows, rows))
        plain = HostTensor(tensor.name, tensor.type, (slab.stop - start, columns), tensor.data[slab]).dequantize()
        data[slab] = encode(plain.reshape(-1, GROUP)).reshape(-1, data.shape[1])
    return HostTensor(tensor.name, type, tensor.shape, data)


def _encode_q8_0(groups: Float32) -> Blocks:
    """[G, 32] → ``[ scale f16 | codes 32 B ]`` each: ``scale * code``, the scale rounded up so that codes reach 127."""
    largest = np.abs(groups).max(axis=1)
    scales = _halves(largest / np.float32(127))
    scales = np.where(scales.astype(np.float32) * 127 < largest, np.nextafter(scales, np.float16(np.inf)), scales)
    codes = np.rint(groups * _inverse(scales)[:, np.newaxis]).astype(np.int8)
    blocks = np.empty((len(groups), 34), np.uint8)
    blocks[:, :2] = scales[:, np.newaxis].view(np.uint8)
    blocks[:, 2:] = codes.view(np.uint8)
    return blocks


def _encode_q4_1(groups: Float32) -> Blocks:
    """[G, 32] → ``[ scale f16 | minimum f16 | codes 16 B ]`` each: ``scale * code + minimum``.

    The range of a group, cut into 15 steps, gives first codes; then scale and minimum are those of the regression of
    the elements on their codes, and give better codes.
    """
    low, high = groups.min(axis=1), groups.max(axis=1)
    scales, minima = _halves((high - low) / np.float32(15)), _halves(low)
    codes = _codes_of_q4_1(groups, scales, minima)
    mean = groups.mean(axis=1)
    for _ in range(NUM_REFITS):
        mean_code = codes.mean(axis=1)
        deviation = codes - mean_code[:, np.newaxis]
        spread = np.einsum("gi,gi->g", deviation, deviation)
        slope = np.einsum("gi,gi->g", deviation, groups) / np.where(spread > 0, spread, np.float32(1))
        scales = np.where(spread > 0, _halves(slope), scales)
        minima = _halves(mean - scales.astype(np.float32) * mean_code)
        codes = _codes_of_q4_1(groups, scales, minima)
    whole = codes.astype(np.uint8)
    blocks = np.empty((len(groups), 20), np.uint8)
    blocks[:, 0:2] = scales[:, np.newaxis].view(np.uint8)
    blocks[:, 2:4] = minima[:, np.newaxis].view(np.uint8)
    blocks[:, 4:] = whole[:, :16] | whole[:, 16:] << 4
    return blocks


def _codes_of_q4_1(groups: Float32, scales: npt.NDArray[np.float16], minima: npt.NDArray[np.float16]) -> Float32:
    """The nearest codes [G, 32], still as numbers."""
    steps = (groups - minima.astype(np.float32)[:, np.newaxis]) * _inverse(scales)[:, np.newaxis]
    codes: Float32 = np.clip(np.rint(steps), np.float32(0), np.float32(15))
    return codes


def _halves(x: Float32) -> npt.NDArray[np.float16]:
    """To half precision."""
    with np.errstate(over="ignore"):
        halves = x.astype(np.float16)
    if not np.isfinite(halves).all():
        raise FloatingPointError("holds numbers that are not finite, or too large to be quantised")
    return halves


def _inverse(scales: npt.NDArray[np.float16]) -> Float32:
    """1 / scale; 0 where all elements of a group are equal."""
    wide = scales.astype(np.float32)
    return np.where(wide > 0, np.float32(1) / np.where(wide > 0, wide, np.float32(1)), np.float32(0))


_ENCODERS: Mapping[TensorType, Callable[[Float32], Blocks]] = {
    TensorType.Q8_0: _encode_q8_0,
    TensorType.Q4_1: _encode_q4_1,
}
