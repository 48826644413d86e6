"""Reader of safetensors: one file, or several named by ``model.safetensors.index.json``.

    header size u64 | header: JSON {name: {"dtype", "shape", "data_offsets": [begin, end]}} | the tensors' bytes

Little-endian; offsets count from the end of the header and cover all that follows, without holes
(https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.backends.base import HostTensor, TensorType
from octavo.errors import ModelFileError
from octavo.models.config_fields import shown
from octavo.weights.json_file import parse_json, read_json
from octavo.weights.tensor_table import TensorEntry, TensorTable, map_file

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

TENSOR_TYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}


def read_safetensors(path: Path) -> TensorTable:
    """Read and check one file's header; the tensors' bytes stay on disk. Raises ``ModelFileError``."""
    buffer = map_file(path)
    if len(buffer) < 8:
        raise ModelFileError(path, "header size", f"needs 8 bytes, but the file has {len(buffer)}")
    header_bytes = int.from_bytes(buffer[:8], "little")
    data_start = 8 + header_bytes
    if header_bytes > MAX_HEADER_BYTES or data_start > len(buffer):
        problem = f"{header_bytes:,} bytes do not fit in the file ({len(buffer):,}) or the limit ({MAX_HEADER_BYTES:,})"
        raise ModelFileError(path, "header size", problem)
    header = parse_json(buffer[8:data_start], path, "header")
    header.pop("__metadata__", None)
    entries = [_read_entry(path, name, fields, data_start) for name, fields in header.items()]
    _refuse_holes(path, entries, data_start, len(buffer))
    return TensorTable(path, buffer, entries)


def read_sharded_safetensors(index_path: Path) -> Mapping[str, HostTensor]:
    """Read all the files that an index names; each must hold exactly the tensors that the index places in it."""
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelFileError(index_path, "weight_map", "must map the names of tensors to the names of files")
    tables = []
    for file_name in sorted(set(weight_map.values())):
        if Path(file_name).name != file_name or not file_name.endswith(".safetensors"):
            problem = f"{shown(file_name)} is not the name of a .safetensors file in this folder"
            raise ModelFileError(index_path, "weight_map", problem)
        table = read_safetensors(index_path.with_name(file_name))
        placed = {name for name, place in weight_map.items() if place == file_name}
        if misplaced := sorted(placed ^ set(table)):
            problem = f"the index and the file {file_name} disagree about this tensor"
            raise ModelFileError(index_path, misplaced[0], problem)
        tables.append(table)
    return ChainMap(*tables)  # type: ignore[arg-type]  # which only reads


def _read_entry(path: Path, name: str, fields: Any, data_start: int) -> TensorEntry:
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise ModelFileError(path, name, f"must have dtype, shape and data_offsets, not {shown(fields)}")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str):
        raise ModelFileError(path, name, f"dtype must be a string, not {shown(dtype)}")
    if not _is_list_of_sizes(shape):
        raise ModelFileError(path, name, f"shape must be a list of sizes, not {shown(shape)}")
    if not _is_list_of_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelFileError(path, name, f"data_offsets must be a beginning and an end, not {shown(offsets)}")
    type = TENSOR_TYPES.get(dtype)
    start, end = (data_start + offset for offset in offsets)
    if type is not None and math.prod(shape) * type.block_bytes != end - start:
        problem = (
            f"shape {shown(shape)} of {dtype} needs {math.prod(shape) * type.block_bytes} bytes, not {end - start}"
        )
        raise ModelFileError(path, name, problem)
    return TensorEntry(name, dtype, type, tuple(shape), start, end)


def _is_list_of_sizes(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) <= 8 and all(type(size) is int and 0 <= size < 1 << 48 for size in value)
    )


def _refuse_holes(path: Path, entries: list[TensorEntry], data_start: int, file_bytes: int) -> None:
    position = data_start
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.end)):
        if entry.start > position:
            raise ModelFileError(
                path, entry.name, f"{entry.start - position:,} bytes before its data belong to nothing"
            )
        position = max(position, entry.end)
    if position < file_bytes:
        raise ModelFileError(path, "size", f"{file_bytes - position:,} bytes at the end belong to no tensor")
