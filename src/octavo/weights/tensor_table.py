"""The tensors of one mapped file: a table of where each lies, checked before anything is read."""

from __future__ import annotations

import itertools
import math
import mmap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octavo.backends.base import HostTensor, TensorType
from octavo.errors import ModelFileError, UnsupportedModelError

Bytes = npt.NDArray[np.uint8]


def map_file(path: Path) -> mmap.mmap:
    """Map a whole file for reading; pages are read when touched."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # mmap's word for an empty file
        raise ModelFileError(path, "size", "the file is empty") from None
    except OSError as error:
        raise ModelFileError(path, "file", f"cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor's place.

    Attributes:
        type_name: the encoding by its name in the file's format.
        type: the encoding, ``None`` if Octavo does not have it.
        shape: outermost dimension first.
        start, end: bytes of the file; ``end`` is exclusive.
    """

    name: str
    type_name: str
    type: TensorType | None
    shape: tuple[int, ...]
    start: int
    end: int


class TensorTable(Mapping[str, HostTensor]):
    """Tensors by name; the view of one is made when it is asked for.

    A tensor whose encoding or rank Octavo does not have may be in the table; asking for it is an
    ``UnsupportedModelError``.
    """

    def __init__(self, path: Path, buffer: mmap.mmap, entries: Iterable[TensorEntry]) -> None:
        """Raises ``ModelFileError`` for a name that comes twice, and for bytes out of bounds or used twice."""
        self.path = path
        self._bytes: Bytes = np.frombuffer(buffer, dtype=np.uint8)
        self._entries: dict[str, TensorEntry] = {}
        for entry in entries:
            if entry.name in self._entries:
                raise ModelFileError(path, entry.name, "two tensors have this name")
            if entry.end > len(self._bytes):
                problem = f"its data ends at byte {entry.end:,}, but the file ends at {len(self._bytes):,}; "
                raise ModelFileError(path, entry.name, problem + "is the download complete?")
            self._entries[entry.name] = entry
        in_order = sorted(self._entries.values(), key=lambda entry: (entry.start, entry.end))
        for before, after in itertools.pairwise(in_order):
            if after.start < before.end:
                raise ModelFileError(path, after.name, f"its data overlaps that of {before.name}")

    def __getitem__(self, name: str) -> HostTensor:
        entry = self._entries[name]
        shape = entry.shape
        if entry.type is None:
            supported = ", ".join(kind.label for kind in TensorType)
            raise UnsupportedModelError(f"{self.path}: {name}: type {entry.type_name} is not one of {supported}")
        if len(shape) not in (1, 2):
            raise UnsupportedModelError(f"{self.path}: {name}: has {len(shape)} dimensions, not 1 or 2")
        rows = shape[0] if len(shape) == 2 else 1
        data = self._bytes[entry.start : entry.end].reshape(rows, entry.type.row_bytes(shape[-1]))
        return HostTensor(name, entry.type, shape, data)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def num_encoded_bytes(path: Path, name: str, type: TensorType, shape: tuple[int, ...]) -> int:
    """Bytes that a tensor of this shape takes; a row must be whole blocks."""
    if shape and shape[-1] % type.block_elements:
        problem = (
            f"rows of {shape[-1]:,} elements are not whole blocks of {type.block_elements}, which {type.label} needs"
        )
        raise ModelFileError(path, name, problem)
    return math.prod(shape) // type.block_elements * type.block_bytes
