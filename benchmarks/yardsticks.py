"""The machine's limits, measured beside whatever is compared with them.

The loops are in ``yardsticks.cc``, which is compiled on first use with the C++ compiler that builds Octavo.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_suffix(".cc")
SECONDS = 0.15
"""How long each loop runs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What all threads together do per second.

    Attributes:
        stream_bytes: bytes read from a buffer of the weights' size.
        tile_flops: bf16 tile products; 0: the machine has none.
        fma_flops: fp32 multiply-adds.
    """

    stream_bytes: float
    tile_flops: float
    fma_flops: float

    def matmul_flops(self, isa: str) -> float:
        """The limit that a matmul on ``isa`` has."""
        return self.tile_flops if isa == "amx" else self.fma_flops

    def better(self, other: Limits) -> Limits:
        """The larger of each: the less disturbed measurement."""
        return Limits(
            max(self.stream_bytes, other.stream_bytes),
            max(self.tile_flops, other.tile_flops),
            max(self.fma_flops, other.fma_flops),
        )


def measure_limits(num_threads: int, num_bytes: int) -> Limits:
    """Every thread runs its loop at the same time as the others; each reads its own part of the buffer."""
    return Limits(
        stream_bytes=stream_bytes(num_threads, num_bytes),
        tile_flops=_sum_over_threads(num_threads, lambda _: _library().tile_peak(SECONDS)),
        fma_flops=_sum_over_threads(num_threads, lambda _: _library().fma_peak(SECONDS)),
    )


def stream_bytes(num_threads: int, num_bytes: int) -> float:
    """Bytes per second at which all threads together read a buffer of ``num_bytes``, each its own part of it."""
    address, part = _buffer(num_bytes).ctypes.data, num_bytes // num_threads // 64 * 64
    return _sum_over_threads(num_threads, lambda i: _library().stream_read(address + i * part, part, SECONDS))


def _sum_over_threads(num_threads: int, measure: Callable[[int], float]) -> float:
    with ThreadPoolExecutor(num_threads) as threads:
        return sum(threads.map(measure, range(num_threads)))


@cache
def _buffer(num_bytes: int) -> np.ndarray:
    return np.ones(num_bytes // 8 + 8, np.int64)


@cache
def _library() -> ctypes.CDLL:
    """Compile and load the loops. Calls let go of the GIL."""
    compiler = os.environ.get("CXX", "c++")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "yardsticks.so"
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", SOURCE, "-o", target]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"the machine's limits need a C++ compiler; {compiler} failed: {error}") from error
        library = ctypes.CDLL(str(target))
    library.stream_read.restype = library.fma_peak.restype = library.tile_peak.restype = ctypes.c_double
    library.stream_read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_double]
    library.fma_peak.argtypes = library.tile_peak.argtypes = [ctypes.c_double]
    return library
