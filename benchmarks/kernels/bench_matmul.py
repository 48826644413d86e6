"""Matmul on packed weights: checked against float64 first, then timed, beside what the machine can do at most.

    python benchmarks/kernels/bench_matmul.py [--json] [--type Q4_1] [--rows 1,8,64,512] [--threads N]

Shapes are those of the default model. ``fraction`` compares with the machine's yardstick of the same run: streaming
reads of the weight's bytes where those are the limit (one row), else the peak of float multiply-adds, which products of
quantised weights may pass: they are integer ones.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from octavo.backends.host_tensor import HostTensor, TensorType
from octavo.backends.native import NativeBackend

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576))
SECONDS_PER_ROW = 0.5
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)} | dict.fromkeys(("Q4_K", "Q5_K", "Q4_1", "Q5_1"), (0, 2))
"""Offsets of the half-precision numbers in a block; of all other types it is the first."""


def random_matrix(type: TensorType, rows: int, columns: int) -> HostTensor:
    """Random codes, with half-precision scales near 0.01."""
    rng = np.random.default_rng(0)
    if not type.is_quantized:
        values = rng.standard_normal((rows, columns)).astype(np.float32) * 0.05
        data = {
            "F32": lambda: values.view(np.uint8),
            "F16": lambda: values.astype(np.float16).view(np.uint8),
            "BF16": lambda: (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8),
        }[type.label]()
        return HostTensor("w", type, (rows, columns), data)
    blocks = rows * columns // type.block_elements
    data = rng.integers(0, 256, (blocks, type.block_bytes), dtype=np.uint8)
    for offset in HALVES.get(type.label, (0,)):
        scales = rng.uniform(-0.01, 0.01, blocks).astype(np.float16)
        data[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return HostTensor("w", type, (rows, columns), data.reshape(rows, -1))


def check(backend: NativeBackend, tensor: HostTensor, weight: object, x: np.ndarray) -> None:
    """The first columns against float64 on the dequantised matrix."""
    exact_rows = slice(0, min(64, tensor.shape[0]))
    part = HostTensor(tensor.name, tensor.type, (exact_rows.stop, tensor.shape[1]), tensor.data[exact_rows])
    exact = x.astype(np.float64) @ part.dequantize().astype(np.float64).T
    got = backend.linear(x, weight)[:, exact_rows]
    # Activations are rounded to 16 bits, each by at most 2^-16 of its group's largest.
    error = np.abs(got - exact).max() / np.abs(exact).max()
    assert error < 2e-4, f"{tensor.type.label} {tensor.shape}: error {error}"


def measure(backend: NativeBackend, type: TensorType, rows: list[int]) -> list[dict[str, object]]:
    """One result per shape and number of rows."""
    results: list[dict[str, object]] = []
    peak = backend.runtime.peak_flops()
    for shape in SHAPES:
        tensor = random_matrix(type, *shape)
        weight = backend.prepare_weight([tensor])
        stream = backend.runtime.streaming_bytes_per_s(max(weight.num_bytes, 1 << 20))
        for num_rows in rows:
            x = np.random.default_rng(1).standard_normal((num_rows, shape[1])).astype(np.float32)
            check(backend, tensor, weight, x)
            out = np.empty((num_rows, shape[0]), np.float32)
            best, end = float("inf"), time.perf_counter() + SECONDS_PER_ROW
            while time.perf_counter() < end:
                start = time.perf_counter()
                backend.runtime.linear(x, weight, None, out)
                best = min(best, time.perf_counter() - start)
            flops, read = 2 * num_rows * shape[0] * shape[1] / best, weight.num_bytes / best
            fraction = max(flops / peak, read / stream) if num_rows <= 2 else flops / peak
            results.append(
                {
                    "type": type.label,
                    "isa": backend.plan.isa,
                    "threads": backend.num_threads,
                    "features": shape[0],
                    "columns": shape[1],
                    "rows": num_rows,
                    "microseconds": round(best * 1e6, 1),
                    "gflops": round(flops / 1e9, 1),
                    "gbytes_per_s": round(read / 1e9, 2),
                    "peak_gflops": round(peak / 1e9, 1),
                    "stream_gbytes_per_s": round(stream / 1e9, 2),
                    "fraction": round(fraction, 3),
                }
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--type", default="Q4_1", choices=[t.label for t in TensorType])
    parser.add_argument("--rows", default="1,2,8,32,64,512")
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    backend = NativeBackend(num_threads=arguments.threads)
    type = TensorType[arguments.type]
    for result in measure(backend, type, [int(n) for n in arguments.rows.split(",")]):
        if arguments.json:
            print(json.dumps(result), flush=True)
        else:
            print("  ".join(f"{key} {value}" for key, value in result.items()), flush=True)


if __name__ == "__main__":
    main()
