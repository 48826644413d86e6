"""Reader of GGUF, versions 2 and 3: one file that holds a model's header, tokeniser and tensors.

    magic "GGUF" | version u32 | number of tensors u64 | number of metadata pairs u64
    metadata:  key string | type u32 | value                                            … per pair
    tensors:   name string | dimensions u32 | sizes u64 … | type u32 | offset u64       … per tensor
    padding to ``general.alignment``, then the tensors' bytes, each at its offset from here

Little-endian; a string is its length in bytes as u64, then UTF-8. Sizes are listed innermost first.
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)

Nothing is believed: a count is compared with the bytes that are left before anything of its size is made, and the
header must end within :data:`MAX_HEADER_BYTES`, so a damaged file costs little time and memory.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from octavo.backends.base import TensorType
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.tensor_table import TensorEntry, TensorTable, map_file, num_encoded_bytes

MAX_HEADER_BYTES = 100_000_000
"""The largest vocabularies of today take about a fifth of this."""
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4
DEFAULT_ALIGNMENT = 32

SCALAR_FORMATS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
"""Type number of a metadata value → its ``struct`` format."""
STRING, ARRAY = 8, 9

TENSOR_TYPES = {
    0: TensorType.F32,
    1: TensorType.F16,
    2: TensorType.Q4_0,
    3: TensorType.Q4_1,
    6: TensorType.Q5_0,
    7: TensorType.Q5_1,
    8: TensorType.Q8_0,
    10: TensorType.Q2_K,
    11: TensorType.Q3_K,
    12: TensorType.Q4_K,
    13: TensorType.Q5_K,
    14: TensorType.Q6_K,
    20: TensorType.IQ4_NL,
    23: TensorType.IQ4_XS,
    30: TensorType.BF16,
}
OTHER_TENSOR_TYPES = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""Types that exist but that Octavo does not have."""


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A GGUF file, its header read and checked.

    Attributes:
        metadata: numbers, booleans and strings as Python's own; arrays as lists.
        tensors: by their GGUF names, views of the mapped file.
    """

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: TensorTable


def read_gguf(path: Path) -> GGUFFile:
    """Read a header; the tensors' bytes stay on disk.

    Raises:
        ModelFileError: the file is damaged; names the field.
        UnsupportedModelError: version 1 or big-endian.
    """
    buffer = map_file(path)
    reader = _HeaderReader(path, buffer)
    version = _read_version(reader)
    num_tensors = reader.count("number of tensors", smallest=8 + 4 + 8 + 4 + 8)
    num_pairs = reader.count("number of metadata pairs", smallest=8 + 4 + 1)
    metadata: dict[str, Any] = {}
    for index in range(num_pairs):
        key = reader.string(f"metadata key {index}")
        if key in metadata:
            reader.wrong(key, "the metadata holds this key twice")
        metadata[key] = reader.value(key, reader.scalar(key, "<I"))
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
        reader.wrong("general.alignment", f"must be a power of two from 8 to 65536, not {str(alignment)[:40]}")
    entries = [_read_tensor_entry(reader, index, alignment) for index in range(num_tensors)]
    data_start = -(-reader.position // alignment) * alignment
    return GGUFFile(path, version, metadata, TensorTable(path, buffer, (entry.at(data_start) for entry in entries)))


def _read_version(reader: _HeaderReader) -> int:
    magic = reader.take("magic", 4)
    if magic != b"GGUF":
        reader.wrong("magic", f"must be GGUF, not {magic!r}; this is no GGUF file")
    version: int = reader.scalar("version", "<I")
    if version in (2, 3):
        return version
    if version == 1:
        raise UnsupportedModelError(f"{reader.path}: version: 1 is too old; convert the model again (2 and 3 are read)")
    if version.to_bytes(4, "little") in ((2).to_bytes(4, "big"), (3).to_bytes(4, "big")):
        raise UnsupportedModelError(f"{reader.path}: version: the file is big-endian; only little-endian ones are read")
    raise UnsupportedModelError(f"{reader.path}: version: {version} is not known (2 and 3 are read)")


@dataclass(frozen=True, slots=True)
class _RelativeEntry:
    """A tensor entry whose place is still counted from the start of the data."""

    name: str
    type_name: str
    type: TensorType | None
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    def at(self, data_start: int) -> TensorEntry:
        start = data_start + self.offset
        return TensorEntry(self.name, self.type_name, self.type, self.shape, start, start + self.num_bytes)


def _read_tensor_entry(reader: _HeaderReader, index: int, alignment: int) -> _RelativeEntry:
    name = reader.string(f"tensor name {index}")
    num_dimensions = reader.scalar(name, "<I")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        reader.wrong(name, f"must have 1 to {MAX_DIMENSIONS} dimensions, not {num_dimensions:,}")
    shape = tuple(reader.scalar(name, "<Q") for _ in range(num_dimensions))[::-1]
    if 0 in shape:
        reader.wrong(name, f"has no elements: {list(shape)}")
    type_number = reader.scalar(name, "<I")
    offset = reader.scalar(name, "<Q")
    if offset % alignment:
        reader.wrong(name, f"its offset {offset:,} is not a multiple of the alignment {alignment}")
    type = TENSOR_TYPES.get(type_number)
    if type is None:
        return _RelativeEntry(name, OTHER_TENSOR_TYPES.get(type_number, str(type_number)), None, shape, offset, 0)
    num_bytes = num_encoded_bytes(reader.path, name, type, shape)
    return _RelativeEntry(name, type.label, type, shape, offset, num_bytes)


class _HeaderReader:
    """A position in the header, and the reads that check before they take."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.position = 0
        self.end = min(len(buffer), MAX_HEADER_BYTES)

    def wrong(self, field: str, problem: str) -> NoReturn:
        raise ModelFileError(self.path, field[:100], problem)

    def require(self, field: str, num_bytes: int) -> None:
        """Fail unless that many bytes are left."""
        if num_bytes > self.end - self.position:
            where = "the file" if self.end == len(self.buffer) else f"the largest header ({MAX_HEADER_BYTES:,} bytes)"
            self.wrong(field, f"needs {num_bytes:,} bytes from byte {self.position:,} on, past the end of {where}")

    def take(self, field: str, num_bytes: int) -> bytes:
        self.require(field, num_bytes)
        start = self.position
        self.position += num_bytes
        return self.buffer[start : self.position]

    def scalar(self, field: str, format: str) -> Any:
        size = struct.calcsize(format)
        self.require(field, size)
        (value,) = struct.unpack_from(format, self.buffer, self.position)
        self.position += size
        return value

    def count(self, field: str, smallest: int) -> int:
        """A number of things, each of which takes at least ``smallest`` bytes of what is left."""
        value: int = self.scalar(field, "<Q")
        if value * smallest > self.end - self.position:
            self.wrong(field, f"{value:,} cannot fit in the {self.end - self.position:,} bytes that are left")
        return value

    def string(self, field: str) -> str:
        return self.decode(field, self.take(field, self.scalar(field, "<Q")))

    def decode(self, field: str, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            self.wrong(field, f"is not UTF-8 ({error.reason} at byte {error.start:,})")

    def value(self, field: str, type_number: int, depth: int = 0) -> Any:
        if type_number == STRING:
            return self.string(field)
        if type_number == ARRAY:
            return self.array(field, depth + 1)
        if type_number not in SCALAR_FORMATS:
            self.wrong(field, f"value type {type_number} is not known")
        return self.scalar(field, SCALAR_FORMATS[type_number])

    def array(self, field: str, depth: int) -> list[Any]:
        if depth > MAX_ARRAY_DEPTH:
            self.wrong(field, f"arrays nest deeper than {MAX_ARRAY_DEPTH}")
        type_number = self.scalar(field, "<I")
        if type_number == STRING:
            return self.strings(field, self.count(field, smallest=8))
        if type_number == ARRAY:
            return [self.array(field, depth + 1) for _ in range(self.count(field, smallest=12))]
        if type_number not in SCALAR_FORMATS:
            self.wrong(field, f"element type {type_number} is not known")
        dtype = np.dtype(SCALAR_FORMATS[type_number])
        count = self.count(field, smallest=dtype.itemsize)
        elements: list[Any] = np.frombuffer(self.take(field, count * dtype.itemsize), dtype).tolist()
        return elements

    def strings(self, field: str, count: int) -> list[str]:
        """An array's strings. Vocabularies have hundreds of thousands, so the loop does nothing twice."""
        buffer, position, end = self.buffer, self.position, self.end
        unpack = struct.Struct("<Q").unpack_from
        strings = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(buffer, position)[0]
                if position > end:
                    break
                strings.append(buffer[start:position].decode())
        except UnicodeDecodeError as error:
            self.wrong(field, f"string {len(strings):,} is not UTF-8 ({error.reason} at byte {error.start:,})")
        except struct.error:
            position = end + 1
        if position > end:
            self.wrong(field, f"string {len(strings):,} of {count:,} runs past the end of the header")
        self.position = position
        return strings
