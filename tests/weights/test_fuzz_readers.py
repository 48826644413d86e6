"""Whatever bytes a model file holds, opening it gives a model or an error of ours: soon, and in little memory."""

from __future__ import annotations

import json
import struct
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import OctavoError
from octavo.weights.loader import open_checkpoint

FUZZ = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
MAX_SECONDS = 1.0
MAX_BYTES = 20_000_000
MAX_MESSAGE = 1000

EXTREMES = st.sampled_from([0, 1, 2, 31, 127, 255, 1 << 15, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1])

# One change of some bytes: (kind, position as a share of the length, number)
EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("byte"), st.floats(0, 1), st.integers(0, 255)),
        st.tuples(st.just("u32"), st.floats(0, 1), EXTREMES),
        st.tuples(st.just("u64"), st.floats(0, 1), EXTREMES),
        st.tuples(st.just("cut"), st.floats(0, 1), st.integers(1, 64)),
        st.tuples(st.just("insert"), st.floats(0, 1), st.binary(min_size=1, max_size=16)),
        st.tuples(st.just("truncate"), st.floats(0, 1), st.just(0)),
    ),
    min_size=1,
    max_size=4,
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | EXTREMES | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def edited(data: bytes, edits: list[tuple[str, float, Any]], reach: int) -> bytes:
    """``data`` after the edits, all within its first ``reach`` bytes, where the header is."""
    for kind, share, value in edits:
        at = int(share * min(reach, len(data)))
        if kind == "byte":
            data = data[:at] + bytes([value]) + data[at + 1 :]
        elif kind == "u32":
            data = data[:at] + struct.pack("<I", value & 0xFFFFFFFF) + data[at + 4 :]
        elif kind == "u64":
            data = data[:at] + struct.pack("<Q", value) + data[at + 8 :]
        elif kind == "cut":
            data = data[:at] + data[at + value :]
        elif kind == "insert":
            data = data[:at] + value + data[at:]
        else:
            data = data[:at]
    return data


def open_within_bounds(path: Path) -> None:
    """Open and read everything; only our errors may come out."""
    message = ""
    tracemalloc.start()
    started = time.perf_counter()
    try:
        checkpoint = open_checkpoint(path)
        for tensor in checkpoint.tensors.values():
            tensor.dequantize()
        assert not np.isnan(checkpoint.config.rope.inverse_frequencies()).any()
    except OctavoError as error:
        message = str(error)
    finally:
        seconds = time.perf_counter() - started
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(message) < MAX_MESSAGE
    assert seconds < MAX_SECONDS
    assert peak_bytes < MAX_BYTES


@pytest.fixture(scope="module")
def folder(files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files.write_folder(tmp_path_factory.mktemp("fuzz") / "tiny")


@pytest.fixture(scope="module")
def open_bytes() -> Callable[[bytes], None]:
    """Open these bytes as a GGUF file."""

    def open_file(data: bytes) -> None:
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(data)
            file.flush()
            open_within_bounds(Path(file.name))

    return open_file


@FUZZ
@given(data=st.binary(max_size=200), sound_start=st.booleans())
def test_any_bytes_as_gguf(open_bytes, data: bytes, sound_start: bool) -> None:
    open_bytes(b"GGUF\x03\0\0\0" + data if sound_start else data)


@FUZZ
@given(edits=EDITS)
def test_an_edited_gguf_file(files, open_bytes, edits: list) -> None:
    data = files.tiny_gguf().to_bytes()
    open_bytes(edited(data, edits, reach=2600))


GGUF_VALUES = st.one_of(
    st.tuples(st.just("u32"), st.integers(0, (1 << 32) - 1) | EXTREMES.map(lambda n: n & 0xFFFFFFFF)),
    st.tuples(st.just("u64"), st.integers(0, (1 << 64) - 1)),
    st.tuples(st.just("i64"), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.tuples(st.just("f32"), st.floats(width=32)),
    st.tuples(st.just("bool"), st.booleans()),
    st.tuples(st.just("str"), st.text(max_size=12)),
    st.tuples(st.just("[u32]"), st.lists(st.integers(0, 99), max_size=4)),
    st.tuples(st.just("[str]"), st.lists(st.text(max_size=4), max_size=4)),
)


@FUZZ
@given(data=st.data())
def test_a_gguf_file_whose_fields_hold_anything(files, open_bytes, data: st.DataObject) -> None:
    writer = files.tiny_gguf()
    keys = [
        *writer.metadata,
        "general.alignment",
        "llama.rope.freq_base",
        "llama.rope.scaling.type",
        "llama.vocab_size",
    ]
    for key in data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3)):
        writer.metadata[key] = data.draw(GGUF_VALUES)
    tensor = data.draw(st.sampled_from(writer.tensors))
    part = data.draw(st.sampled_from(["name", "shape", "type", "offset", "data", "nothing"]))
    if part == "name":
        tensor.name = data.draw(st.sampled_from([other.name for other in writer.tensors]) | st.text(max_size=20))
    elif part == "shape":
        tensor.shape = data.draw(st.lists(EXTREMES, max_size=5))
    elif part == "type":
        tensor.type = data.draw(st.integers(0, 45))
    elif part == "offset":
        tensor.offset = data.draw(EXTREMES.map(lambda n: n & ~31) | EXTREMES)
    elif part == "data":
        tensor.data = data.draw(st.binary(max_size=64))
    open_bytes(writer.to_bytes())


@FUZZ
@given(edits=EDITS)
def test_an_edited_safetensors_file(files, folder: Path, edits: list) -> None:
    data = files.safetensors_bytes(*files.encode_safetensors(files.tiny_arrays()))
    (folder / "model.safetensors").write_bytes(edited(data, edits, reach=2200))
    open_within_bounds(folder)


@FUZZ
@given(data=st.data())
def test_a_safetensors_header_that_holds_anything(files, folder: Path, data: st.DataObject) -> None:
    header, body = files.encode_safetensors(files.tiny_arrays())
    name = data.draw(st.sampled_from([*header, "new"]))
    part = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", None]))
    if part is None or name not in header:
        header[name] = data.draw(JSON_VALUES)
    elif part == "dtype":
        header[name][part] = data.draw(st.sampled_from(["F16", "BF16", "F64", "I8", "F8_E4M3"]) | JSON_VALUES)
    else:
        header[name][part] = data.draw(st.lists(st.integers(0, 5000) | EXTREMES, max_size=4) | JSON_VALUES)
    (folder / "model.safetensors").write_bytes(files.safetensors_bytes(header, body))
    open_within_bounds(folder)


CONFIG_KEYS = ["rope_scaling", "rope_parameters", "sliding_window", "layer_types", "use_sliding_window"]
CONFIG_KEYS += ["max_window_layers", "quantization_config", "hidden_act", "attention_bias"]
ROPE = st.dictionaries(
    st.sampled_from(
        ["type", "rope_type", "factor", "low_freq_factor", "original_max_position_embeddings", "rope_theta"]
    ),
    st.sampled_from(["linear", "yarn", "llama3", "default", 2.0, 1e-300, 1e308, 8]) | JSON_VALUES,
)


@FUZZ
@given(data=st.data())
def test_a_config_that_holds_anything(files, folder: Path, data: st.DataObject) -> None:
    files.write_folder(folder)
    config = dict(files.HUGGING_FACE_CONFIG)
    config["model_type"] = data.draw(st.sampled_from(["llama", "mistral", "qwen2", "qwen3"]))
    config["architectures"] = None
    for key in data.draw(st.lists(st.sampled_from([*config, *CONFIG_KEYS]), min_size=1, max_size=4)):
        config[key] = data.draw(JSON_VALUES | ROPE)
    (folder / "config.json").write_text(json.dumps(config))
    open_within_bounds(folder)
