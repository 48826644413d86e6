"""Random inputs for ops: weights of every type, block tables and batches, sampling parameters."""

from __future__ import annotations

import dataclasses

import numpy as np

from octavo.backends.base import Backend, Batch, HostTensor, SamplingBatch, TensorType
from octavo.backends.reference.bfloat16 import round_to_bfloat16

SCALE_OFFSETS: dict[TensorType, tuple[int, ...]] = {
    TensorType.Q4_0: (0,),
    TensorType.Q4_1: (0, 2),
    TensorType.Q5_0: (0,),
    TensorType.Q5_1: (0, 2),
    TensorType.Q8_0: (0,),
    TensorType.Q2_K: (80, 82),
    TensorType.Q3_K: (108,),
    TensorType.Q4_K: (0, 2),
    TensorType.Q5_K: (0, 2),
    TensorType.Q6_K: (208,),
    TensorType.IQ4_NL: (0,),
    TensorType.IQ4_XS: (0,),
}
"""Where a quantised block keeps its half-precision scale and minimum."""


def random_tensor(rng: np.random.Generator, type: TensorType, rows: int, columns: int) -> HostTensor:
    """A matrix of any type. Quantised blocks are random bytes, but for their scales, so every code occurs."""
    if not type.is_quantized:
        values = rng.normal(size=(rows, columns)).astype(np.float32)
        if type is TensorType.F32:
            return HostTensor.from_array("weight", values)
        if type is TensorType.F16:
            return HostTensor("weight", type, values.shape, values.astype(np.float16).view(np.uint8))
        upper_halves = np.ascontiguousarray(round_to_bfloat16(values).view(np.uint16)[:, 1::2])
        return HostTensor("weight", type, values.shape, upper_halves.view(np.uint8))
    blocks = rng.integers(0, 256, (rows * columns // type.block_elements, type.block_bytes), dtype=np.uint8)
    for offset in SCALE_OFFSETS[type]:
        scales = rng.uniform(-0.02, 0.02, (len(blocks), 1)).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8)
    return HostTensor("weight", type, (rows, columns), blocks.reshape(rows, -1))


def float32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def int32(values: object) -> np.ndarray:
    return np.asarray(values, dtype=np.int32)


def scatter_blocks(rng: np.random.Generator, seq_lens: list[int], block_size: int) -> tuple[np.ndarray, int]:
    """Random disjoint blocks for every request: block_tables [R, max blocks], padded with 0, and the pool's size."""
    counts = [-(-seq_len // block_size) for seq_len in seq_lens]
    num_blocks = sum(counts) + 3
    free = rng.permutation(num_blocks)
    tables = np.zeros((len(counts), max(counts) + 1), np.int32)
    for request, count in enumerate(counts):
        tables[request, :count], free = free[:count], free[count:]
    return tables, num_blocks


def make_batch(backend: Backend, requests: tuple[tuple[int, int], ...], tables: np.ndarray, block_size: int) -> Batch:
    """The batch of a step, in the backend's arrays; its input ids are zeros."""
    seq_lens = [seq_len for seq_len, _ in requests]
    query_lens = [query_len for _, query_len in requests]
    positions = np.concatenate([np.arange(seq_len - query_len, seq_len) for seq_len, query_len in requests])
    owner = np.repeat(np.arange(len(requests)), query_lens)
    slots = tables[owner, positions // block_size] * block_size + positions % block_size
    return Batch(
        input_ids=backend.from_host(np.zeros(len(positions), np.int32)),
        positions=backend.from_host(int32(positions)),
        slot_mapping=backend.from_host(int32(slots)),
        block_tables=backend.from_host(tables),
        seq_lens=backend.from_host(int32(seq_lens)),
        query_start_loc=backend.from_host(int32([0, *np.cumsum(query_lens)])),
        num_tokens=len(positions),
        num_requests=len(requests),
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
    )


def sampling_batch(num_rows: int, **features: object) -> SamplingBatch:
    """A batch in which no row uses anything, but for ``features``."""
    unused = dict.fromkeys(field.name for field in dataclasses.fields(SamplingBatch) if field.name != "num_logprobs")
    defaults = {"temperature": np.ones(num_rows, np.float32), "uniform": np.zeros(num_rows, np.float32)}
    return SamplingBatch(**{**unused, **defaults, **features})  # type: ignore[arg-type]


def random_sampling(rng: np.random.Generator, num_rows: int, vocabulary: int, features: set[str]) -> SamplingBatch:
    """Random settings of the named features; some rows of each are left neutral, and some are greedy."""

    def some(values: np.ndarray, neutral: float) -> np.ndarray:
        return np.where(rng.random(num_rows) < 0.7, values, neutral).astype(np.float32)

    settings: dict[str, object] = {
        "temperature": some(rng.uniform(0.2, 2.0, num_rows), 0.0),
        "uniform": rng.random(num_rows, dtype=np.float32),
        "top_k": int32(some(rng.integers(1, 2 * vocabulary, num_rows), 0)),
        "top_p": some(rng.uniform(0.05, 1.0, num_rows), 1.0),
        "min_p": some(rng.uniform(0.0, 0.5, num_rows), 0.0),
        "repetition_penalty": some(rng.uniform(0.5, 2.0, num_rows), 1.0),
        "presence_penalty": some(rng.uniform(-2.0, 2.0, num_rows), 0.0),
        "frequency_penalty": some(rng.uniform(-2.0, 2.0, num_rows), 0.0),
    }
    kept = {name: value for name, value in settings.items() if name in features | {"temperature", "uniform"}}
    if any("penalty" in feature for feature in features):
        lists = [rng.permutation(vocabulary)[: rng.integers(0, vocabulary // 2)] for _ in range(num_rows)]
        kept["history_starts"] = int32([0, *np.cumsum([len(ids) for ids in lists])])
        kept["history_token_ids"] = int32(np.concatenate(lists))
        kept["history_counts"] = int32(rng.integers(0, 4, len(np.concatenate(lists))))
    if "bias" in features:
        lists = [rng.permutation(vocabulary)[: rng.integers(0, vocabulary // 2)] for _ in range(num_rows)]
        values = rng.uniform(-5, 5, len(np.concatenate(lists))).astype(np.float32)
        kept["bias_starts"] = int32([0, *np.cumsum([len(ids) for ids in lists])])
        kept["bias_token_ids"] = int32(np.concatenate(lists))
        kept["bias_values"] = np.where(rng.random(len(values)) < 0.2, -np.inf, values).astype(np.float32)
    return sampling_batch(num_rows, **kept)
