"""Reading safetensors: what a sound file says, and what a damaged one is refused for."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.safetensors import read_safetensors, read_sharded_safetensors


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_every_supported_type_is_a_view(files, write) -> None:
    bits = (np.array([1.0, -2.5], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    arrays = {"f": np.arange(6, dtype=np.float32).reshape(3, 2), "h": np.array([0.5], np.float16), "b": bits}
    table = read_safetensors(write(files.safetensors_bytes(*files.encode_safetensors(arrays))))
    assert table["f"].dequantize().tolist() == [[0, 1], [2, 3], [4, 5]]
    assert table["h"].dequantize().tolist() == [0.5]
    assert table["b"].dequantize().tolist() == [1.0, -2.5]


def test_types_and_ranks_that_octavo_lacks_are_refused_when_used(files, write) -> None:
    arrays = {"ids": np.arange(3), "cube": np.zeros((1, 2, 3), np.float32)}
    table = read_safetensors(write(files.safetensors_bytes(*files.encode_safetensors(arrays))))
    with pytest.raises(UnsupportedModelError, match="ids: type I64"):
        table["ids"]
    with pytest.raises(UnsupportedModelError, match="cube: has 3 dimensions"):
        table["cube"]


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "size: the file is empty"),
        (b"\x02\0\0", "header size: needs 8 bytes"),
        (struct.pack("<Q", 1 << 63) + b"{}", "header size: 9,223,372,036,854,775,808 bytes do not fit"),
        (struct.pack("<Q", 3) + b"{}", "header size: 3 bytes do not fit"),
        (struct.pack("<Q", 2) + b"[]", "header: must be an object"),
        (struct.pack("<Q", 2) + b"{,", "header: is not sound JSON"),
        (struct.pack("<Q", 4) + b'"\xff\xff"', "header: is not sound JSON"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "header: is not sound JSON"),
        (struct.pack("<Q", 15) + b'{"a":1,"a":  2}', "header: holds the key 'a' twice"),
        (struct.pack("<Q", 2) + b"{}" + b"x", "size: 1 bytes at the end belong to no tensor"),
    ],
)
def test_a_damaged_header_is_refused(write, data: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        read_safetensors(write(data))


@pytest.mark.parametrize(
    "header, message",
    [
        ({"w": 3}, "w: must have dtype, shape and data_offsets"),
        ({"w": entry() | {"more": 1}}, "w: must have dtype, shape and data_offsets"),
        ({"w": entry(dtype=4)}, "w: dtype must be a string"),
        ({"w": entry(shape="8")}, "w: shape must be a list of sizes"),
        ({"w": entry(shape=[-2])}, "w: shape must be a list of sizes"),
        ({"w": entry(shape=[True])}, "w: shape must be a list of sizes"),
        ({"w": entry(shape=[2.0])}, "w: shape must be a list of sizes"),
        ({"w": entry(shape=[1 << 70])}, "w: shape must be a list of sizes"),
        ({"w": entry(shape=[1] * 1000)}, "w: shape must be a list of sizes"),
        ({"w": entry(offsets=[8, 0])}, "w: data_offsets must be a beginning and an end"),
        ({"w": entry(offsets=[0, 8, 9])}, "w: data_offsets must be a beginning and an end"),
        ({"w": entry(shape=[3])}, r"w: shape \[3\] of F32 needs 12 bytes, not 8"),
        ({"w": entry(shape=[4], offsets=[0, 16])}, "w: its data ends at byte"),
        ({"v": entry(), "w": entry(shape=[1], offsets=[4, 8])}, "w: its data overlaps that of v"),
        ({"w": entry(shape=[1], offsets=[4, 8])}, "w: 4 bytes before its data belong to nothing"),
        ({"w": entry(shape=[1], offsets=[0, 4])}, "size: 4 bytes at the end belong to no tensor"),
    ],
)
def test_an_entry_that_cannot_be_true_is_refused(files, write, header: dict, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        read_safetensors(write(files.safetensors_bytes(header, bytes(8))))


def test_shards_are_one_mapping(files, tmp_path) -> None:
    arrays = files.tiny_arrays()
    folder = files.write_folder(tmp_path / "model", arrays, num_shards=3)
    tensors = read_sharded_safetensors(folder / "model.safetensors.index.json")
    assert set(tensors) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(tensors[name].dequantize(), array)


@pytest.mark.parametrize(
    "place, message",
    [
        ("model-00001-of-00002.safetensors", "norm.weight: the index and the file .* disagree about this tensor"),
        ("gone.safetensors", "gone.safetensors: file: cannot be read: No such file or directory"),
        ("../model-00001-of-00002.safetensors", "weight_map: .* is not the name of a .safetensors file in this folder"),
        ("/etc/passwd", "weight_map: .* is not the name of a .safetensors file in this folder"),
        ("config.json", "weight_map: .* is not the name of a .safetensors file in this folder"),
        (7, "weight_map: must map the names of tensors to the names of files"),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(files, tmp_path, place: object, message: str) -> None:
    folder = files.write_folder(tmp_path / "model", num_shards=2)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = place
    index.write_text(json.dumps(content))
    with pytest.raises(ModelFileError, match=message):
        read_sharded_safetensors(index)
