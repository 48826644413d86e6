"""Reading GGUF: what a sound file says, and what a damaged one is refused for."""

from __future__ import annotations

import struct
import time

import numpy as np
import pytest

from octavo.backends.host_tensor import TensorType
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights import gguf
from octavo.weights.gguf import read_gguf


def test_every_kind_of_value_is_read(files, write) -> None:
    metadata = {
        "a.u8": ("u8", 255),
        "a.i8": ("i8", -128),
        "a.u16": ("u16", 65535),
        "a.i16": ("i16", -2),
        "a.u32": ("u32", 1 << 31),
        "a.i32": ("i32", -3),
        "a.f32": ("f32", 0.5),
        "a.bool": ("bool", True),
        "a.str": ("str", "žluť 🐎"),
        "a.u64": ("u64", (1 << 64) - 1),
        "a.i64": ("i64", -(1 << 63)),
        "a.f64": ("f64", 0.1),
        "a.[str]": ("[str]", ["", "Ġa", "b"]),
        "a.[f32]": ("[f32]", [1.5, -2.0]),
        "a.[bool]": ("[bool]", [True, False]),
        "a.[i32]": ("[i32]", []),
        "a.[[u8]]": ("[[u8]]", [[1, 2], []]),
    }
    file = read_gguf(write(files.GGUFWriter(metadata=metadata).to_bytes()))
    assert file.metadata == {key: value for key, (_, value) in metadata.items()}
    assert [type(value) for value in file.metadata["a.[bool]"]] == [bool, bool]
    assert (file.version, len(file.tensors)) == (3, 0)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_tensors_are_views_in_row_major_shape(files, write, version: int, alignment: int) -> None:
    writer = files.GGUFWriter(version=version, alignment=alignment)
    if alignment != 32:
        writer.metadata["general.alignment"] = ("u32", alignment)
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    blocks = bytes(range(40))
    writer.tensors = [
        files.GGUFTensor("matrix", (2, 3), 0, matrix.tobytes()),
        files.GGUFTensor("vector", (3,), 1, np.array([1, 2, 3], np.float16).tobytes()),
        files.GGUFTensor("blocks", (2, 32), 3, blocks),
    ]
    tensors = read_gguf(write(writer.to_bytes())).tensors
    assert list(tensors) == ["matrix", "vector", "blocks"]
    assert tensors["matrix"].dequantize().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["vector"].dequantize().tolist() == [1, 2, 3]
    assert tensors["blocks"].type is TensorType.Q4_1
    assert tensors["blocks"].data.tolist() == [list(range(20)), list(range(20, 40))]
    assert not tensors["matrix"].data.flags.writeable


@pytest.mark.parametrize(
    "data, field",
    [
        (b"", "size"),
        (b"GG", "magic"),
        (b"GGML" + bytes(40), "magic"),
        (b"GGUF\x03\0\0", "version"),
        (b"GGUF\x03\0\0\0\x01\0", "number of tensors"),
    ],
)
def test_the_first_bytes_are_checked(write, data: bytes, field: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read_gguf(write(data))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "version, message",
    [(1, "version: 1 is too old"), (0x03000000, "big-endian"), (4, "version: 4 is not known")],
)
def test_other_versions_are_refused_by_name(files, write, version: int, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read_gguf(write(files.GGUFWriter(version=version).to_bytes()))


def test_every_truncation_of_a_file_is_refused(files, write) -> None:
    data = files.tiny_gguf().to_bytes()
    for length in range(0, len(data), 41):
        with pytest.raises(ModelFileError):
            read_gguf(write(data[:length]))
    assert len(read_gguf(write(data)).tensors) == 21


@pytest.mark.parametrize("count", [1 << 20, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("field", ["num_tensors", "num_pairs"])
def test_absurd_counts_cost_nothing(files, write, field: str, count: int) -> None:
    writer = files.tiny_gguf()
    setattr(writer, field, count)
    started = time.perf_counter()
    with pytest.raises(ModelFileError, match="cannot fit in the"):
        read_gguf(write(writer.to_bytes()))
    assert time.perf_counter() - started < 0.2


@pytest.mark.parametrize("element", [0, 4, 8, 9, 12])
def test_absurd_array_lengths_are_refused(write, element: int) -> None:
    header = (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, element, 1 << 60)
    )
    with pytest.raises(ModelFileError, match="k: 1,152,921,504,606,846,976 cannot fit"):
        read_gguf(write(header + bytes(64)))


def test_a_string_in_an_array_that_runs_past_the_end_is_named(write) -> None:
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 8, 3)
    for second in (1 << 63, 1000, (1 << 64) - 1):
        body = struct.pack("<Q", 2) + b"ab" + struct.pack("<Q", second) + bytes(40)
        with pytest.raises(ModelFileError, match="k: string 1 of 3 runs past the end"):
            read_gguf(write(header + body))


def test_deep_arrays_are_refused(write) -> None:
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 9)
    with pytest.raises(ModelFileError, match="arrays nest deeper"):
        read_gguf(write(header + struct.pack("<IQ", 9, 1) * 100_000))


def test_the_header_must_end_within_its_limit(files, write, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = files.GGUFWriter(metadata={"k": ("str", "x" * 2000)})
    monkeypatch.setattr(gguf, "MAX_HEADER_BYTES", 1000)
    with pytest.raises(ModelFileError, match=r"k: needs 2,000 bytes .* past the end of the largest header"):
        read_gguf(write(writer.to_bytes()))


@pytest.mark.parametrize("alignment", [("u32", 0), ("u32", 24), ("u32", 1 << 20), ("str", "32"), ("f32", 32.0)])
def test_an_alignment_must_be_a_sane_power_of_two(files, write, alignment: tuple[str, object]) -> None:
    with pytest.raises(ModelFileError, match=r"general\.alignment: must be a power of two"):
        read_gguf(write(files.GGUFWriter(metadata={"general.alignment": alignment}).to_bytes()))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"shape": ()}, "w: must have 1 to 4 dimensions, not 0"),
        ({"shape": (1,) * 5}, "w: must have 1 to 4 dimensions, not 5"),
        ({"shape": (4, 0)}, r"w: has no elements: \[4, 0\]"),
        ({"shape": (1 << 63, 1 << 63)}, "w: its data ends at byte"),
        ({"type": 3, "shape": (2, 33)}, "w: rows of 33 elements are not whole blocks of 32, which Q4_1 needs"),
        ({"offset": 16}, "w: its offset 16 is not a multiple of the alignment 32"),
        ({"offset": 96}, "w: its data ends at byte"),
        ({"offset": 1 << 62}, "w: its data ends at byte"),
        ({"name": "v"}, "v: two tensors have this name"),
    ],
)
def test_a_tensor_entry_that_cannot_be_true_is_refused(files, write, change: dict, message: str) -> None:
    tensor = files.GGUFTensor("w", (4,), 0, bytes(16))
    for name, value in change.items():
        setattr(tensor, name, value)
    last = files.GGUFTensor("v", (4,), 0, bytes(48), offset=64)
    with pytest.raises(ModelFileError, match=message):
        read_gguf(write(files.GGUFWriter(tensors=[tensor, last]).to_bytes()))


def test_overlapping_tensors_are_refused(files, write) -> None:
    one = files.GGUFTensor("one", (16,), 0, bytes(64), offset=0)
    two = files.GGUFTensor("two", (8,), 0, bytes(32), offset=32)
    with pytest.raises(ModelFileError, match="two: its data overlaps that of one"):
        read_gguf(write(files.GGUFWriter(tensors=[one, two]).to_bytes()))


def test_a_type_that_octavo_lacks_is_named_when_the_tensor_is_used(files, write) -> None:
    tensors = [files.GGUFTensor("a", (256,), 16, bytes(66)), files.GGUFTensor("b", (1,), 77, bytes(4))]
    table = read_gguf(write(files.GGUFWriter(tensors=tensors).to_bytes())).tensors
    with pytest.raises(UnsupportedModelError, match="a: type IQ2_XXS is not one of F32, F16"):
        table["a"]
    with pytest.raises(UnsupportedModelError, match="b: type 77"):
        table["b"]


def test_a_key_twice_and_text_that_is_not_utf8_are_refused(write, files) -> None:
    pair = files.GGUFWriter.string("key") + struct.pack("<II", 4, 1)
    with pytest.raises(ModelFileError, match="key: the metadata holds this key twice"):
        read_gguf(write(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + pair + pair))
    with pytest.raises(ModelFileError, match="k: is not UTF-8"):
        read_gguf(write(files.GGUFWriter(metadata={"k": ("str", b"\xff\xfe")}).to_bytes()))
    with pytest.raises(ModelFileError, match="k: string 1 is not UTF-8"):
        read_gguf(write(files.GGUFWriter(metadata={"k": ("[str]", ["a", b"\x80"])}).to_bytes()))


def test_a_large_vocabulary_is_read_fast(files, write) -> None:
    words = [f"word{i}" for i in range(100_000)]
    path = write(files.GGUFWriter(metadata={"tokenizer.ggml.tokens": ("[str]", words)}).to_bytes())
    started = time.perf_counter()
    file = read_gguf(path)
    assert time.perf_counter() - started < 0.5  # about 0.03 s; a machine may be busy
    assert file.metadata["tokenizer.ggml.tokens"] == words
