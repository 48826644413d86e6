"""Paged attention: checked against the reference backend first, then timed, beside the speed of streaming reads.

    python benchmarks/kernels/bench_attention.py [--json] [--threads N] [--kv-cache-dtype int8]

Decode reads every key and value once, so its limit is the streaming read speed over the KV bytes; prefill is compared
with the peak of multiply-adds. Heads are those of the default model.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from octavo.backends.base import Batch, KVCacheSpec
from octavo.backends.native import NativeBackend
from octavo.backends.reference import ReferenceBackend

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16
CASES = ((1, 1, 512), (1, 1, 4096), (8, 1, 1024), (32, 1, 4096), (1, 512, 512))
"""(requests, new tokens each, context length each)."""
SECONDS_PER_ROW = 1.0


def make_batch(num_requests: int, num_new: int, length: int) -> tuple[Batch, Batch, int]:
    """The batch to time, the batch that fills the cache, and the number of blocks."""
    blocks_each = -(-length // BLOCK_SIZE)
    tables = np.arange(num_requests * blocks_each, dtype=np.int32).reshape(num_requests, -1)

    def batch(count: int) -> Batch:
        positions = np.tile(np.arange(length - count, length, dtype=np.int32), num_requests)
        owners = np.repeat(np.arange(num_requests), count)
        slots = tables[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        starts = np.arange(num_requests + 1, dtype=np.int32) * count
        lengths = np.full(num_requests, length, np.int32)
        return Batch(positions, positions, slots, tables, lengths, starts, len(positions), num_requests, count, length)

    return batch(num_new), batch(length), num_requests * blocks_each


def measure(backend: NativeBackend, case: tuple[int, int, int], dtype: str) -> dict[str, object]:
    """Check, then time."""
    num_requests, num_new, length = case
    timed, filling, num_blocks = make_batch(*case)
    rng = np.random.default_rng(0)
    spec = KVCacheSpec(1, num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, dtype)
    k, v = (rng.standard_normal((filling.num_tokens, NUM_KV_HEADS, HEAD_DIM), np.float32) for _ in range(2))
    q = rng.standard_normal((timed.num_tokens, NUM_HEADS, HEAD_DIM), np.float32)
    results = []
    for candidate in (ReferenceBackend(), backend):
        cache = candidate.allocate_kv_cache(spec)
        candidate.reshape_and_cache(k, v, cache, 0, filling.slot_mapping)
        results.append(candidate.paged_attention(q, cache, 0, timed, HEAD_DIM**-0.5))
    error = float(np.abs(results[0] - results[1]).max())
    assert error < 0.02, f"{case}: error {error}"

    best, end = float("inf"), time.perf_counter() + SECONDS_PER_ROW
    while time.perf_counter() < end:
        start = time.perf_counter()
        backend.paged_attention(q, cache, 0, timed, HEAD_DIM**-0.5)
        best = min(best, time.perf_counter() - start)
    kv_bytes = num_requests * length * spec.bytes_per_token
    stream = backend.runtime.streaming_bytes_per_s(max(kv_bytes, 1 << 20))
    pairs = num_requests * (num_new * length - num_new * (num_new - 1) // 2)
    flops = 4 * pairs * NUM_HEADS * HEAD_DIM / best
    peak = backend.runtime.peak_flops()
    return {
        "isa": backend.plan.isa,
        "threads": backend.num_threads,
        "kv_cache_dtype": dtype,
        "requests": num_requests,
        "new_tokens": num_new,
        "context": length,
        "microseconds": round(best * 1e6, 1),
        "gbytes_per_s": round(kv_bytes / best / 1e9, 2),
        "stream_gbytes_per_s": round(stream / 1e9, 2),
        "gflops": round(flops / 1e9, 1),
        "peak_gflops": round(peak / 1e9, 1),
        "fraction": round(kv_bytes / best / stream if num_new == 1 else flops / peak, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--kv-cache-dtype", default="bfloat16", help="bfloat16, float32 or int8")
    arguments = parser.parse_args()
    backend = NativeBackend(num_threads=arguments.threads)
    for case in CASES:
        result = measure(backend, case, arguments.kv_cache_dtype)
        if arguments.json:
            print(json.dumps(result), flush=True)
        else:
            print("  ".join(f"{key} {value}" for key, value in result.items()), flush=True)


if __name__ == "__main__":
    main()
