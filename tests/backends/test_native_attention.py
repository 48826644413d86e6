"""Native attention: independent of ISA, threads, chunking, block size and of what lies in blocks nobody wrote."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.base import Batch, KVCacheSpec
from octavo.backends.native import NativeBackend, cpu_plan
from octavo.backends.reference.int8 import quantize_heads
from octavo.errors import BackendError

NUM_HEADS, NUM_KV_HEADS = 6, 2
SPLITS = ((1, 16, 300), (2, 16, 7), (3, 32, 64), (1, 8, 50), (2, 128, 33), (1, 1, 90))
"""(threads, block size, tokens per chunk)."""


def make_backend(isa: str, monkeypatch: pytest.MonkeyPatch, num_threads: int = 1) -> NativeBackend:
    monkeypatch.setenv("OCTAVO_ISA", isa)
    return NativeBackend(num_threads=num_threads)


class Context:
    """Random q, k and v of some requests, and how to run them through a poisoned cache in pieces."""

    def __init__(self, lengths: list[int], head_dim: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.lengths, self.head_dim = lengths, head_dim
        self.q = [rng.standard_normal((n, NUM_HEADS, head_dim)).astype(np.float32) for n in lengths]
        self.k = [rng.standard_normal((n, NUM_KV_HEADS, head_dim)).astype(np.float32) for n in lengths]
        self.v = [rng.standard_normal((n, NUM_KV_HEADS, head_dim)).astype(np.float32) for n in lengths]

    def run(
        self, backend: NativeBackend, block_size: int, chunk: int, dtype: str = "bfloat16", window: int | None = None
    ) -> list[np.ndarray]:
        """Prefill every request ``chunk`` tokens at a time, all requests in one batch per step."""
        blocks_each = [-(-n // block_size) for n in self.lengths]
        num_blocks = sum(blocks_each) + 3
        order = np.random.default_rng(1).permutation(num_blocks).astype(np.int32)
        tables = np.zeros((len(self.lengths), max(blocks_each)), np.int32)
        for request, count in enumerate(blocks_each):
            start = sum(blocks_each[:request])
            tables[request, :count] = order[start : start + count]
        cache = backend.allocate_kv_cache(KVCacheSpec(1, num_blocks, block_size, NUM_KV_HEADS, self.head_dim, dtype))
        cache.bytes()[:] = 0xFF  # NaN in bfloat16 and float32, and in the scales of int8
        results = [np.empty((n, NUM_HEADS * self.head_dim), np.float32) for n in self.lengths]
        for first in range(0, max(self.lengths), chunk):
            spans = [(r, first, min(first + chunk, n)) for r, n in enumerate(self.lengths) if first < n]
            q = np.concatenate([self.q[r][a:b] for r, a, b in spans])
            k = np.concatenate([self.k[r][a:b] for r, a, b in spans])
            v = np.concatenate([self.v[r][a:b] for r, a, b in spans])
            positions = np.concatenate([np.arange(a, b, dtype=np.int32) for _, a, b in spans])
            owners = np.concatenate([np.full(b - a, r, np.int32) for r, a, b in spans])
            slots = tables[owners, positions // block_size] * block_size + positions % block_size
            starts = np.cumsum([0, *(b - a for _, a, b in spans)]).astype(np.int32)
            seq_lens = np.array([b for *_, b in spans], np.int32)
            rows = tables[[r for r, *_ in spans]]
            batch = Batch(
                positions, positions, slots, rows, seq_lens, starts, len(q), len(spans), chunk, int(seq_lens.max())
            )
            backend.reshape_and_cache(k, v, cache, 0, slots)
            out = backend.paged_attention(q, cache, 0, batch, self.head_dim**-0.5, window)
            for (r, a, b), start in zip(spans, starts, strict=False):
                results[r][a:b] = out[start : start + b - a]
        return results

    def exact(self, window: int | None = None, *, rounded: bool = True) -> list[np.ndarray]:
        """Float64 attention over inputs that were rounded as the cache rounds them."""
        results = []
        for q, k, v in zip(self.q, self.k, self.v, strict=True):
            k, v = (round_to_bfloat16(x) if rounded else x for x in (k, v))
            k, v = (np.repeat(x.astype(np.float64), NUM_HEADS // NUM_KV_HEADS, axis=1) for x in (k, v))
            scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), k) * self.head_dim**-0.5
            distance = np.arange(len(q))[:, None] - np.arange(len(q))[None, :]
            visible = (distance >= 0) & (distance < (window or len(q)))
            weights = np.where(visible, np.exp(scores - scores.max(axis=-1, keepdims=True)), 0)
            weights /= weights.sum(axis=-1, keepdims=True)
            results.append(np.einsum("hqk,khd->qhd", weights, v).reshape(len(q), -1))
        return results


def round_to_bfloat16(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


def assert_equal_bits(got: list[np.ndarray], expected: list[np.ndarray], message: str) -> None:
    for a, b in zip(got, expected, strict=True):
        assert np.isfinite(a).all(), message
        np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32), err_msg=message)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("head_dim", [8, 20, 64, 80])
def test_equal_bits_on_every_isa_thread_count_chunk_and_block_size(head_dim: int, dtype: str, monkeypatch) -> None:
    context = Context([1, 37, 300], head_dim)
    expected = context.run(make_backend("scalar", monkeypatch), block_size=16, chunk=300, dtype=dtype)
    for isa in cpu_plan().available_isas[1:]:
        for num_threads, block_size, chunk in SPLITS:
            backend = make_backend(isa, monkeypatch, num_threads)
            got = context.run(backend, block_size, chunk, dtype)
            assert_equal_bits(got, expected, f"{isa} threads {num_threads} block {block_size} chunk {chunk}")


@pytest.mark.parametrize("window", [1, 16, 100, 257])
def test_sliding_window_is_exact_and_independent_of_chunks(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context([530, 20], 64)
    exact = context.exact(window)
    expected = None
    for isa in cpu_plan().available_isas[1:]:
        for block_size, chunk in ((16, 530), (16, 9), (32, 128)):
            got = context.run(make_backend(isa, monkeypatch, 2), block_size, chunk, window=window)
            expected = expected or got
            assert_equal_bits(got, expected, f"{isa} {block_size} {chunk}")
    for a, b in zip(expected, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=5e-6)


def test_float32_cache_keeps_float32_precision() -> None:
    context = Context([400], 64)
    got = context.run(NativeBackend(num_threads=2), 16, 400, "float32")
    np.testing.assert_allclose(got[0], context.exact(rounded=False)[0], atol=5e-6)


def test_int8_cache_is_as_close_as_its_codes_are() -> None:
    context = Context([400], 64)
    got = context.run(NativeBackend(num_threads=2), 16, 400, "int8")[0]
    for x in (context.k, context.v):
        codes, scales = quantize_heads(x[0])
        x[0] = codes * scales[..., np.newaxis]
    np.testing.assert_allclose(got, context.exact(rounded=False)[0], rtol=0, atol=5e-6)


def test_int8_codes_are_those_of_the_reference() -> None:
    """In blocks of one token: codes of K by head, those of V, then the scales of both."""
    rng = np.random.default_rng(3)
    num_tokens, num_heads, head_dim = 50, 2, 32
    k, v = (rng.standard_normal((num_tokens, num_heads, head_dim)).astype(np.float32) for _ in range(2))
    k *= np.float32(10.0) ** rng.integers(-34, 30, (num_tokens, num_heads, 1)).astype(np.float32)
    k[0], v[1, 0], v[2, 1, 5], k[3, 0, 0], k[4, 1, 31] = 0, 1e-31, np.nan, np.inf, -np.inf
    v[5, 0], v[6, 0] = np.linspace(-127, 127, head_dim), np.linspace(-12.7, 12.7, head_dim).astype(np.float32)
    backend = NativeBackend(num_threads=1)
    cache = backend.allocate_kv_cache(KVCacheSpec(1, num_tokens, 1, num_heads, head_dim, "int8"))
    backend.reshape_and_cache(k, v, cache, 0, np.arange(num_tokens, dtype=np.int32))
    blocks = cache.bytes().reshape(num_tokens, -1)
    split = 2 * num_heads * head_dim
    codes = blocks[:, :split].view(np.int8).reshape(num_tokens, 2, num_heads, head_dim)
    scales = blocks[:, split:].copy().view(np.float32).reshape(num_tokens, 2, num_heads)
    for index, x in enumerate((k, v)):
        expected_codes, expected_scales = quantize_heads(x)
        np.testing.assert_array_equal(codes[:, index], expected_codes)
        np.testing.assert_array_equal(scales[:, index], expected_scales)
        assert np.isnan(expected_scales).sum() == (2 if index == 0 else 1)


def test_decode_of_a_long_context_does_not_depend_on_how_threads_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context([1500], 64)
    tail = [context.run(NativeBackend(num_threads=n), 16, 1499)[0][-1:] for n in (1, 2, 3)]
    for other in tail[1:]:
        np.testing.assert_array_equal(tail[0].view(np.int32), other.view(np.int32))


def test_contradictory_batches_are_refused() -> None:
    backend = NativeBackend(num_threads=1)
    cache = backend.allocate_kv_cache(KVCacheSpec(1, 4, 16, 2, 64, "bfloat16"))
    q = np.zeros((1, 6, 64), np.float32)

    def batch(position: int, length: int, block: int) -> Batch:
        a = lambda *values: np.array(values, np.int32)  # noqa: E731
        return Batch(a(0), a(position), a(0), a(block)[None], a(length), a(0, 1), 1, 1, 1, length)

    with pytest.raises(BackendError, match="positions must be the last ones"):
        backend.paged_attention(q, cache, 0, batch(3, 9, 0), 1.0)
    with pytest.raises(BackendError, match="block 7 is not in the KV cache"):
        backend.paged_attention(q, cache, 0, batch(3, 4, 7), 1.0)
    with pytest.raises(BackendError, match="block table too short"):
        backend.paged_attention(q, cache, 0, batch(40, 41, 0), 1.0)
    with pytest.raises(BackendError, match="slot 64 is not one of the 64"):
        backend.reshape_and_cache(q[:, :2], q[:, :2], cache, 0, np.array([64], np.int32))
    with pytest.raises(BackendError, match="q must be a float32 array"):
        backend.paged_attention(q.astype(np.float64), cache, 0, batch(0, 1, 0), 1.0)
