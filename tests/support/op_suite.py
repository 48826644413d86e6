"""The tests of the ops contract: each op on a backend and on the float32 reference, within the op's own tolerance.

Not collected by itself: ``test_ops.py`` and ``tests/live/test_live_ops_torch.py`` import these tests and bring the
fixture ``backend``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from octavo.backends.base import Backend, KVCacheSpec, SampleOutput, TensorType
from octavo.backends.reference import ReferenceBackend
from support.op_inputs import float32, int32, make_batch, random_sampling, random_tensor, sampling_batch, scatter_blocks

BFLOAT16_HALF_ULP = 2.0**-9
"""Largest relative error of rounding to bfloat16."""

ELEMENTWISE_TOLERANCE = 2e-6
"""Relative, of ops that are all float32: a few roundings, an own ``exp``."""

LINEAR_TYPES = [(type,) for type in TensorType] + [
    (TensorType.Q4_1, TensorType.Q4_1, TensorType.Q8_0),
    (TensorType.F32, TensorType.Q6_K, TensorType.BF16),
]
LINEAR_SHAPES = [(1, 64, 256), (5, 33, 768), (18, 48, 512), (65, 7, 256)]
"""Tokens, rows, columns: tokens and rows off and on the edges of any tile, columns a multiple of the largest block."""

SAMPLING_FEATURES: list[set[str]] = [
    set(),
    {"top_k"},
    {"top_p"},
    {"min_p"},
    {"repetition_penalty"},
    {"presence_penalty"},
    {"frequency_penalty"},
    {"bias"},
    {"top_k", "top_p"},
    {"top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "bias"},
]


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: np.ndarray | float) -> None:
    """Elementwise ``|actual - expected| <= tolerance``; NaN never passes."""
    assert actual.shape == expected.shape
    assert actual.dtype == np.float32
    error = np.abs(actual - expected)
    worst = np.unravel_index(np.argmax(np.nan_to_num(error - tolerance, nan=np.inf)), error.shape)
    limit = np.broadcast_to(tolerance, error.shape)[worst]
    assert (error <= tolerance).all(), f"at {worst}: {actual[worst]} instead of {expected[worst]} ± {limit}"


# ---- linear and embedding -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", TensorType, ids=lambda type: type.label)
def test_embedding(backend: Backend, type: TensorType) -> None:
    """Exact: a look-up only dequantises."""
    rng = np.random.default_rng(1)
    tensor = random_tensor(rng, type, 37, 512)
    input_ids = int32([36, 0, 5, 5, 17])
    rows = backend.embedding(backend.prepare_weight([tensor]), backend.from_host(input_ids))
    tolerance = 1e-6 * np.abs(tensor.dequantize()).max()
    assert_close(backend.to_host(rows), tensor.dequantize()[input_ids], tolerance)


@pytest.mark.parametrize("strided", [False, True], ids=["", "strided"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(
    ("types", "num_tokens", "num_rows", "num_columns"),
    [
        (pair, num_tokens, num_rows, num_columns)
        for pair in LINEAR_TYPES
        for num_tokens, num_rows, num_columns in LINEAR_SHAPES
    ],
)
def test_linear(
    backend: Backend,
    types: tuple[TensorType, ...],
    num_tokens: int,
    num_rows: int,
    num_columns: int,
    bias: bool,
    strided: bool,
) -> None:
    """Rounding an input to bfloat16 moves a product by at most its half ulp; the errors add up like random ones.

    So the bound is a few times half an ulp of ``sqrt(x² @ w².T)``, which one missing or misplaced product exceeds.
    """
    rng = np.random.default_rng(num_tokens * num_rows + num_columns)
    tensors = [random_tensor(rng, type, num_rows, num_columns) for type in types]
    wide = float32(rng, num_tokens, num_columns + 64)
    x = wide[:, 32 : 32 + num_columns] if strided else wide[:, :num_columns].copy()
    added = float32(rng, num_rows * len(types)) if bias else None

    matrix = np.concatenate([tensor.dequantize() for tensor in tensors])
    expected = x @ matrix.T + (0 if added is None else added)
    device_wide = backend.from_host(wide if strided else x)
    device_x = device_wide[:, 32 : 32 + num_columns] if strided else device_wide
    device_bias = None if added is None else backend.from_host(added)
    actual = backend.linear(device_x, backend.prepare_weight(tensors), device_bias)
    spread = np.sqrt(np.square(x) @ np.square(matrix).T)
    assert_close(backend.to_host(actual), expected, 8 * BFLOAT16_HALF_ULP * spread + 1e-6)


@pytest.mark.parametrize("type", TensorType, ids=lambda type: type.label)
def test_linear_is_exact(backend: Backend, type: TensorType) -> None:
    """Inputs that every rounding leaves alone, and weights kept as they are: only float32 sums differ."""
    rng = np.random.default_rng(2)
    tensor = random_tensor(rng, type, 70, 512)
    x = rng.integers(-32767, 32768, (9, 512)).astype(np.float32) * np.float32(2.0**-14)
    x[:, ::32] = 32767 * 2.0**-14  # the largest of its group: steps are powers of two
    matrix = tensor.dequantize()
    expected = (x.astype(np.float64) @ matrix.T).astype(np.float32)
    actual = backend.linear(backend.from_host(x), backend.prepare_weight([tensor]))
    # A hundredth of what rounding the inputs to bfloat16 would do. Scales and minima that are far larger than what is
    # left of their sum, as in random blocks of Q2_K to Q5_K, cost the most: 1e-5.
    spread = np.sqrt(np.square(x) @ np.square(matrix).T)
    assert_close(backend.to_host(actual), expected, 3e-5 * spread)


# ---- norms, rotation, activation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("strided", [False, True], ids=["", "strided"])
@pytest.mark.parametrize("shape", [(1, 64), (5, 576), (3, 100), (33, 2048), (7, 4, 128), (2, 3, 80)], ids=str)
def test_rms_norm(backend: Backend, shape: tuple[int, ...], strided: bool) -> None:
    rng = np.random.default_rng(sum(shape))
    weight = float32(rng, shape[-1])
    wide = float32(rng, shape[0], 48 + int(np.prod(shape[1:]))) * 3
    columns = slice(16, 16 + int(np.prod(shape[1:]))) if strided else slice(None, int(np.prod(shape[1:])))
    expected = ReferenceBackend().rms_norm(wide[:, columns].reshape(shape), weight, 1e-5)
    x = backend.from_host(wide)[:, columns] if strided else backend.from_host(wide[:, columns].copy())
    actual = backend.rms_norm(x.reshape(shape), backend.from_host(weight), 1e-5)
    assert_close(backend.to_host(actual), expected, ELEMENTWISE_TOLERANCE * np.abs(expected) + 1e-7)


@pytest.mark.parametrize(("num_tokens", "hidden_size"), [(1, 64), (5, 576), (40, 100)])
def test_add_rms_norm(backend: Backend, num_tokens: int, hidden_size: int) -> None:
    rng = np.random.default_rng(num_tokens + hidden_size)
    x, residual = float32(rng, num_tokens, hidden_size), float32(rng, num_tokens, hidden_size)
    weight = float32(rng, hidden_size)
    sum_expected = x + residual
    expected = ReferenceBackend().rms_norm(sum_expected, weight, 1e-6)
    device_residual = backend.from_host(residual.copy())
    actual = backend.add_rms_norm(backend.from_host(x), device_residual, backend.from_host(weight), 1e-6)
    assert_close(backend.to_host(actual), expected, ELEMENTWISE_TOLERANCE * np.abs(expected) + 1e-7)
    np.testing.assert_array_equal(backend.to_host(device_residual), sum_expected)


@pytest.mark.parametrize("num_tokens", [1, 19])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "rotary_dim"),
    [(9, 3, 64, 64), (4, 4, 32, 32), (3, 1, 80, 80), (4, 1, 96, 48), (2, 1, 128, 128), (2, 2, 128, 32)],
)
def test_rotary_embedding(
    backend: Backend, num_heads: int, num_kv_heads: int, head_dim: int, rotary_dim: int, num_tokens: int
) -> None:
    """q and k are column slices of one array, as a model makes them, and are turned in place."""
    rng = np.random.default_rng(head_dim + rotary_dim)
    width = (num_heads + 2 * num_kv_heads) * head_dim
    split = num_heads * head_dim, (num_heads + num_kv_heads) * head_dim
    qkv = float32(rng, num_tokens, width)
    angles = rng.uniform(0, 2 * np.pi, (100, rotary_dim // 2))
    cos_sin = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    positions = int32(rng.integers(0, 100, num_tokens))

    def rotate(on: Backend) -> np.ndarray:
        array = on.from_host(qkv.copy())
        q = array[:, : split[0]].reshape(num_tokens, num_heads, head_dim)
        k = array[:, split[0] : split[1]].reshape(num_tokens, num_kv_heads, head_dim)
        on.rotary_embedding(q, k, on.from_host(positions), on.from_host(cos_sin))
        return on.to_host(array)

    actual, expected = rotate(backend), rotate(ReferenceBackend())
    assert_close(actual, expected, 1e-6)
    np.testing.assert_array_equal(actual[:, split[1] :], qkv[:, split[1] :])


@pytest.mark.parametrize(("num_tokens", "intermediate_size"), [(1, 32), (3, 1536), (17, 99)])
def test_act_and_mul(backend: Backend, num_tokens: int, intermediate_size: int) -> None:
    rng = np.random.default_rng(intermediate_size)
    x = float32(rng, num_tokens, 2 * intermediate_size) * 20
    x[0, 0], x[-1, intermediate_size - 1] = -200, 200
    expected = ReferenceBackend().act_and_mul(x)
    tolerance = ELEMENTWISE_TOLERANCE * np.abs(expected) + 1e-30
    assert_close(backend.to_host(backend.act_and_mul(backend.from_host(x))), expected, tolerance)


def test_take_rows(backend: Backend) -> None:
    x = float32(np.random.default_rng(3), 7, 33)
    rows = int32([6, 0, 0, 3])
    np.testing.assert_array_equal(
        backend.to_host(backend.take_rows(backend.from_host(x), backend.from_host(rows))), x[rows]
    )


# ---- attention ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionCase:
    """A step: per request, how many tokens the cache holds afterwards and how many of them are new."""

    requests: tuple[tuple[int, int], ...]
    block_size: int = 16
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    sliding_window: int | None = None
    dtype: str = "bfloat16"

    def __str__(self) -> str:
        window = "" if self.sliding_window is None else f"-window{self.sliding_window}"
        heads = f"{self.num_heads}:{self.num_kv_heads}x{self.head_dim}"
        return f"{len(self.requests)}requests-block{self.block_size}-{heads}{window}-{self.dtype}"


MIXED = ((1, 1), (37, 1), (16, 16), (130, 1), (70, 9), (33, 33), (17, 1))
"""Decodes and prefills, whole and in chunks, on and off the edges of blocks."""

ATTENTION_CASES = [
    AttentionCase(((1, 1),)),
    AttentionCase(((200, 1),)),
    AttentionCase(((77, 77),)),
    AttentionCase(MIXED),
    *(AttentionCase(MIXED, block_size=block_size) for block_size in (1, 8, 32, 128)),
    *(AttentionCase(MIXED, num_heads=2 * ratio, num_kv_heads=2) for ratio in (1, 3, 4, 8)),
    *(AttentionCase(MIXED, head_dim=head_dim) for head_dim in (32, 80, 96, 128)),
    *(AttentionCase(MIXED, sliding_window=window) for window in (1, 7, 16, 64)),
    AttentionCase(MIXED, num_heads=9, num_kv_heads=3, block_size=8, sliding_window=20),
    AttentionCase(MIXED, dtype="float32"),
    *(AttentionCase(MIXED, dtype="int8", block_size=block_size) for block_size in (1, 8, 16, 64)),
    AttentionCase(MIXED, dtype="int8", num_heads=9, num_kv_heads=3, head_dim=80, sliding_window=20),
    AttentionCase(MIXED, dtype="float32", num_heads=8, num_kv_heads=1, head_dim=80, sliding_window=20),
    AttentionCase(((1100, 1), (900, 300)), num_heads=3, num_kv_heads=1),
]


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=str)
def test_paged_attention(backend: Backend, case: AttentionCase) -> None:
    """Every slot holds NaN until a request's own token is written there, so a slot too many shows at once.

    The tolerance allows a backend to round queries and probabilities to bfloat16 before it multiplies them.
    """
    rng = np.random.default_rng(sum(seq_len for seq_len, _ in case.requests) + case.head_dim)
    seq_lens = [seq_len for seq_len, _ in case.requests]
    tables, num_blocks = scatter_blocks(rng, seq_lens, case.block_size)
    spec = KVCacheSpec(2, num_blocks, case.block_size, case.num_kv_heads, case.head_dim, case.dtype)
    num_context = sum(seq_lens)
    keys = float32(rng, 2, num_context, case.num_kv_heads, case.head_dim)
    values = float32(rng, 2, num_context, case.num_kv_heads, case.head_dim)
    queries = float32(rng, sum(query_len for _, query_len in case.requests), case.num_heads, case.head_dim)
    poison = np.full((num_blocks * case.block_size, case.num_kv_heads, case.head_dim), np.nan, np.float32)

    def attend(on: Backend) -> np.ndarray:
        kv_cache = on.allocate_kv_cache(spec)
        whole = make_batch(on, tuple((seq_len, seq_len) for seq_len in seq_lens), tables, case.block_size)
        for layer in range(2):
            everywhere = on.from_host(int32(np.arange(len(poison))))
            on.reshape_and_cache(on.from_host(poison), on.from_host(poison), kv_cache, layer, everywhere)
            k, v = on.from_host(keys[layer]), on.from_host(values[layer])
            on.reshape_and_cache(k, v, kv_cache, layer, whole.slot_mapping)
        batch = make_batch(on, case.requests, tables, case.block_size)
        scale = case.head_dim**-0.5
        result = on.paged_attention(on.from_host(queries), kv_cache, 1, batch, scale, case.sliding_window)
        return on.to_host(result)

    assert_close(attend(backend), attend(ReferenceBackend()), 2e-3 if case.dtype == "float32" else 0.01)


def test_out_of_window_slots_are_not_read(backend: Backend) -> None:
    """A block that slid out of every new token's window may be someone else's by now, or NaN."""
    rng = np.random.default_rng(4)
    requests, window, block_size = ((70, 1), (50, 3)), 20, 16
    tables, num_blocks = scatter_blocks(rng, [70, 50], block_size)
    keys, values = float32(rng, 120, 2, 64), float32(rng, 120, 2, 64)
    for start, (seq_len, query_len) in zip((0, 70), requests, strict=True):
        forgotten = (seq_len - query_len - window + 1) // block_size * block_size
        assert forgotten > 0
        keys[start : start + forgotten] = values[start : start + forgotten] = np.nan
    spec = KVCacheSpec(1, num_blocks, block_size, 2, 64, "float32")
    kv_cache = backend.allocate_kv_cache(spec)
    whole = make_batch(backend, ((70, 70), (50, 50)), tables, block_size)
    k, v = backend.from_host(keys), backend.from_host(values)
    backend.reshape_and_cache(k, v, kv_cache, 0, whole.slot_mapping)
    batch = make_batch(backend, requests, tables, block_size)
    result = backend.paged_attention(backend.from_host(float32(rng, 4, 4, 64)), kv_cache, 0, batch, 0.125, window)
    assert np.isfinite(backend.to_host(result)).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
def test_copy_blocks(backend: Backend, dtype: str) -> None:
    """After the copy, a request whose table names the copies reads what the originals hold, in every layer."""
    rng = np.random.default_rng(5)
    block_size, seq_len = 16, 40
    kv_cache = backend.allocate_kv_cache(KVCacheSpec(2, 8, block_size, 2, 32, dtype))
    original, copied = int32([[5, 0, 3]]), int32([[1, 6, 2]])
    whole = make_batch(backend, ((seq_len, seq_len),), original, block_size)
    for layer in range(2):
        k, v = (backend.from_host(float32(rng, seq_len, 2, 32)) for _ in range(2))
        backend.reshape_and_cache(k, v, kv_cache, layer, whole.slot_mapping)
    backend.copy_blocks(kv_cache, original[0], copied[0])
    q = backend.from_host(float32(rng, 1, 4, 32))
    for layer in range(2):
        expected, actual = (
            backend.to_host(
                backend.paged_attention(q, kv_cache, layer, make_batch(backend, ((seq_len, 1),), table, 16), 0.2)
            )
            for table in (original, copied)
        )
        np.testing.assert_array_equal(actual, expected)
        assert np.abs(expected).max() > 0.01


# ---- sampling -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_rows", "vocabulary"), [(1, 131), (7, 1000), (33, 64)])
@pytest.mark.parametrize("features", SAMPLING_FEATURES, ids=lambda features: "+".join(sorted(features)) or "plain")
def test_sample(backend: Backend, features: set[str], num_rows: int, vocabulary: int) -> None:
    """Token ids are equal: no draw here lies within rounding of the edge between two tokens."""
    rng = np.random.default_rng(vocabulary + num_rows)
    for _ in range(8):
        logits = float32(rng, num_rows, vocabulary) * 3
        logits[:, vocabulary // 2] = logits[:, 1]  # equal logits: ties are part of the definition
        sampling = random_sampling(rng, num_rows, vocabulary, features)
        expected = ReferenceBackend().sample(logits, sampling)
        actual = backend.sample(backend.from_host(logits), sampling)
        np.testing.assert_array_equal(actual.token_ids, expected.token_ids)
        assert actual.token_ids.dtype == np.int32
        assert (actual.logprobs, actual.ranks, actual.logprob_token_ids) == (None, None, None)


@pytest.mark.parametrize("num_logprobs", [0, 1, 20, 50])
def test_logprobs(backend: Backend, num_logprobs: int) -> None:
    rng = np.random.default_rng(6)
    logits = float32(rng, 5, 301) * 4
    logits[:, 200] = logits[:, 100] = logits.max(axis=1)  # two are most likely: the lower id is listed first
    token_ids = int32([200, 100, 7, 0, 300])
    expected = ReferenceBackend().logprobs(logits, token_ids, num_logprobs)
    assert_same_logprobs(backend.logprobs(backend.from_host(logits), token_ids, num_logprobs), expected)

    sampling = sampling_batch(5, uniform=rng.random(5, dtype=np.float32), num_logprobs=num_logprobs)
    expected = ReferenceBackend().sample(logits, sampling)
    assert_same_logprobs(backend.sample(backend.from_host(logits), sampling), expected)


def assert_same_logprobs(actual: SampleOutput, expected: SampleOutput) -> None:
    np.testing.assert_array_equal(actual.token_ids, expected.token_ids)
    np.testing.assert_array_equal(actual.logprob_token_ids, expected.logprob_token_ids)
    np.testing.assert_array_equal(actual.ranks, expected.ranks)
    assert actual.logprobs is not None
    assert expected.logprobs is not None
    assert_close(actual.logprobs, expected.logprobs, 1e-5 * np.abs(expected.logprobs) + 2e-6)
