"""The native matmul: the same bits on every instruction set, thread count and row count, and close to float64."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.host_tensor import HostTensor, TensorType
from octavo.backends.native import NativeBackend, cpu_plan
from octavo.backends.reference import ReferenceBackend

ALL_ISAS = ("scalar", "avx2", "avx512", "amx")
QUANTIZED = [t for t in TensorType if t.is_quantized]


def backend(isa: str, monkeypatch: pytest.MonkeyPatch, num_threads: int = 1) -> NativeBackend:
    monkeypatch.setenv("OCTAVO_ISA", isa)
    return NativeBackend(num_threads=num_threads)


def random_tensor(type: TensorType, rows: int, columns: int, seed: int) -> HostTensor:
    """Random codes with sane scales: every half-precision scale of a block is drawn near 0.01."""
    rng = np.random.default_rng(seed)
    if not type.is_quantized:
        values = rng.standard_normal((rows, columns)).astype(np.float32)
        data = {
            TensorType.F32: lambda: values.view(np.uint8),
            TensorType.F16: lambda: values.astype(np.float16).view(np.uint8),
            TensorType.BF16: lambda: (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8),
        }[type]()
        return HostTensor("w", type, (rows, columns), data)
    blocks = rows * columns // type.block_elements
    data = rng.integers(0, 256, (blocks, type.block_bytes), dtype=np.uint8)
    halves = {
        "Q2_K": (80, 82),
        "Q3_K": (108,),
        "Q4_K": (0, 2),
        "Q5_K": (0, 2),
        "Q6_K": (208,),
        "Q4_1": (0, 2),
        "Q5_1": (0, 2),
    }
    for offset in halves.get(type.label, (0,)):
        scale = (rng.uniform(-0.01, 0.01, blocks)).astype(np.float16)
        data[:, offset : offset + 2] = scale.view(np.uint8).reshape(-1, 2)
    return HostTensor("w", type, (rows, columns), data.reshape(rows, -1))


def activations(rows: int, columns: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def whole_numbers(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x [T, K] → 16-bit q [T, K / 32, 32] and float32 steps [T, K / 32, 1]: the groups that meet codes."""
    groups = x.reshape(len(x), -1, 32)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    return np.rint(groups * (np.float32(32767) / largest)), largest / np.float32(32767)


def test_every_isa_of_this_machine_is_tested_and_missing_ones_are_named(record_property, capsys) -> None:
    available = cpu_plan().available_isas
    missing = [isa for isa in ALL_ISAS if isa not in available]
    record_property("missing_isas", missing)
    with capsys.disabled():
        if missing:
            print(f"\nWARNING: this machine lacks {', '.join(missing)}: these paths are not tested here")
    assert available[0] == "scalar"


@pytest.mark.parametrize("type", list(TensorType), ids=lambda t: t.label)
def test_equal_bits_on_every_isa_for_every_number_of_rows(type: TensorType, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = 256 if type.block_elements == 256 else 96
    tensor = random_tensor(type, 37, columns, seed=3)
    x = activations(70, columns)
    expected = None
    for isa in cpu_plan().available_isas:
        native = backend(isa, monkeypatch)
        weight = native.prepare_weight([tensor])
        whole = native.linear(x, weight)
        if expected is None:
            expected = whole
        np.testing.assert_array_equal(whole.view(np.int32), expected.view(np.int32), err_msg=isa)
        for rows in (*range(1, 20), 31, 32, 33, 48, 63):
            part = native.linear(x[:rows], weight)
            np.testing.assert_array_equal(part.view(np.int32), expected[:rows].view(np.int32), err_msg=f"{isa} {rows}")


@pytest.mark.parametrize("type", list(TensorType), ids=lambda t: t.label)
def test_close_to_float64(type: TensorType) -> None:
    columns = 512
    tensor = random_tensor(type, 50, columns, seed=5)
    x = activations(9, columns)
    native = NativeBackend()
    got = native.linear(x, native.prepare_weight([tensor]))
    rounded = x.astype(np.float64)
    if type.is_quantized:
        q, steps = whole_numbers(x)
        rounded = (q.astype(np.float64) * steps).reshape(x.shape)
        assert 0 < np.abs(rounded - x).max() <= steps.max() / 2
    dense = tensor.dequantize().astype(np.float64)
    exact = rounded @ dense.T
    # Each of the additions rounds relative to a partial sum, none larger than the sum of magnitudes (with minima, the
    # magnitude of codes and minima apart).
    magnitude = np.abs(rounded) @ (np.abs(dense) + 0.3).T
    assert np.max(np.abs(got - exact) / magnitude) < 40 * 2.0**-24


@pytest.mark.parametrize("shape", [(1, 32), (15, 32), (17, 64), (33, 1536), (48, 576), (100, 2048)])
@pytest.mark.parametrize("type", [TensorType.Q4_1, TensorType.Q8_0, TensorType.BF16], ids=lambda t: t.label)
def test_equal_bits_for_every_number_of_threads(type: TensorType, shape: tuple[int, int], monkeypatch) -> None:
    tensor = random_tensor(type, *shape, seed=11)
    x = activations(21, shape[1])
    results = []
    for isa in cpu_plan().available_isas:
        for num_threads in (1, 2, 3):
            native = backend(isa, monkeypatch, num_threads)
            results.append(native.linear(x, native.prepare_weight([tensor])))
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.int32), results[0].view(np.int32))


@pytest.mark.parametrize("columns", [1, 7, 31, 33, 100])
@pytest.mark.parametrize("type", [TensorType.F32, TensorType.F16, TensorType.BF16], ids=lambda t: t.label)
def test_any_number_of_columns(type: TensorType, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = random_tensor(type, 19, columns, seed=2)
    x = activations(5, columns)
    exact = x.astype(np.float64) @ tensor.dequantize().astype(np.float64).T
    results = []
    for isa in cpu_plan().available_isas:
        native = backend(isa, monkeypatch)
        results.append(native.linear(x, native.prepare_weight([tensor])))
        np.testing.assert_allclose(results[-1], exact, rtol=1e-5, atol=1e-5)
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.int32), results[0].view(np.int32))


def test_stacked_matrices_of_different_types_equal_the_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [
        random_tensor(TensorType.Q4_K, 40, 256, 1),
        random_tensor(TensorType.Q6_K, 24, 256, 2),
        random_tensor(TensorType.F32, 5, 256, 3),
    ]
    bias = activations(1, 69)[0]
    x = activations(4, 256)
    native = NativeBackend()
    stacked = native.linear(x, native.prepare_weight(tensors), bias)
    single = np.concatenate([native.linear(x, native.prepare_weight([t])) for t in tensors], axis=1) + bias
    np.testing.assert_array_equal(stacked, single)


def test_column_slices_are_read_in_place() -> None:
    tensor = random_tensor(TensorType.Q4_1, 32, 64, 1)
    native = NativeBackend()
    weight = native.prepare_weight([tensor])
    wide = activations(6, 200)
    np.testing.assert_array_equal(native.linear(wide[:, 40:104], weight), native.linear(wide[:, 40:104].copy(), weight))


@pytest.mark.parametrize("type", list(TensorType), ids=lambda t: t.label)
def test_embedding_rows_are_the_dequantized_rows(type: TensorType) -> None:
    tensor = random_tensor(type, 45, 256, seed=9)
    native = NativeBackend()
    ids = np.array([0, 44, 3, 16, 15, 3], np.int32)
    got = native.embedding(native.prepare_weight([tensor]), ids)
    np.testing.assert_array_equal(got, tensor.dequantize()[ids])


def test_infinities_and_nans_stay_in_their_row(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = random_tensor(TensorType.Q4_1, 20, 64, 4)
    x = activations(40, 64)
    clean = x.copy()
    x[3, 5] = np.nan
    x[17, 6] = np.inf
    for isa in cpu_plan().available_isas:
        native = backend(isa, monkeypatch)
        weight = native.prepare_weight([tensor])
        got, expected = native.linear(x, weight), native.linear(clean, weight)
        assert np.isnan(got[3]).all()
        assert not np.isfinite(got[17]).any()
        keep = [row for row in range(40) if row not in (3, 17)]
        np.testing.assert_array_equal(got[keep], expected[keep], err_msg=isa)


def test_denormals_are_flushed_alike_and_the_callers_mode_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = random_tensor(TensorType.Q8_0, 20, 64, 4)
    x = activations(40, 64) * np.float32(1e-38)
    x[::3] *= np.float32(1e-3)
    results = []
    for isa in cpu_plan().available_isas:
        native = backend(isa, monkeypatch)
        results.append(native.linear(x, native.prepare_weight([tensor])))
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.int32), results[0].view(np.int32))
    assert np.float32(1e-30) * np.float32(1e-10) > 0, "the caller's own denormals must survive"


def test_codes_are_multiplied_as_the_definition_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: whole numbers summed exactly per group, then one fused multiply-add per scale and minimum."""
    tensor = random_tensor(TensorType.Q4_1, 23, 96, seed=6)
    x = activations(3, 96)
    blocks = tensor.data.reshape(23, 3, 20)
    scales, minima = (blocks[..., i : i + 2].copy().view(np.float16).astype(np.float32)[..., 0] for i in (0, 2))
    codes = np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], axis=-1).astype(np.int64)  # [23, 3, 32]
    q, steps = whole_numbers(x)
    expected = np.zeros((3, 23), np.float32)
    for g in range(3):
        sums = q[:, g].astype(np.int64) @ codes[:, g].T
        totals = q[:, g].astype(np.int64).sum(axis=-1, keepdims=True)
        # A float64 holds the product of two float32 numbers exactly, and almost every sum of it with a third.
        scaled = steps[:, g] * sums.astype(np.float32)
        expected = (scales[:, g].astype(np.float64) * scaled + expected).astype(np.float32)
        shifted = steps[:, g] * totals.astype(np.float32)
        expected = (minima[:, g].astype(np.float64) * shifted + expected).astype(np.float32)
    for isa in cpu_plan().available_isas:
        native = backend(isa, monkeypatch)
        np.testing.assert_array_equal(native.linear(x, native.prepare_weight([tensor])), expected, err_msg=isa)


@pytest.mark.parametrize("largest", [0.0, 2.0**-126, 2.0**-101, 2.0**-100, 1.0, 2.0**90], ids=str)
def test_groups_of_any_size_become_whole_numbers(largest: float) -> None:
    """Groups below 2^-100 are zero, as the reference has them; the others keep 16 bits."""
    tensor = random_tensor(TensorType.Q8_0, 20, 64, seed=8)
    x = activations(4, 64)
    x[:, :32] *= np.float32(largest) / np.abs(x[:, :32]).max()
    native, reference = NativeBackend(), ReferenceBackend("native")
    got = native.linear(x, native.prepare_weight([tensor]))
    expected = reference.linear(x, reference.prepare_weight([tensor]))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
