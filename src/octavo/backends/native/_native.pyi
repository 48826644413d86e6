"""Kernels of the native backend. Use octavo.backends.native instead."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

class CpuBudget:
    @property
    def cores_online(self) -> int: ...
    @property
    def cores_affinity(self) -> int: ...
    @property
    def quota_cores(self) -> float: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def reason(self) -> str: ...

def cpu_budget() -> CpuBudget: ...
def cgroup_quota_cores(proc_cgroup: str, mount: str) -> float: ...
def available_isas() -> list[str]: ...
def choose_isa() -> str: ...

class Weight:
    """Matrices stacked along N, packed."""

    def __init__(
        self,
        runtime: Runtime,
        matrices: Sequence[tuple[str, int, int, Annotated[NDArray, dict(device="cpu", writable=False)]]],
    ) -> None: ...
    @property
    def num_features(self) -> int: ...
    @property
    def num_columns(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...

class KVCache:
    """The pool's memory."""

    def __init__(
        self, num_layers: int, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, is_bf16: bool
    ) -> None: ...
    def copy_blocks(
        self,
        source: Annotated[NDArray, dict(device="cpu", writable=False)],
        target: Annotated[NDArray, dict(device="cpu", writable=False)],
    ) -> None: ...
    def bytes(self) -> NDArray[numpy.uint8]:
        """A view of all of it, so that tests can poison what was never written."""

class Runtime:
    """The kernels of one instruction set, and the threads that run them."""

    def __init__(self, isa: str, num_threads: int) -> None: ...
    def linear(
        self,
        x: Annotated[NDArray, dict(device="cpu", writable=False)],
        weight: Weight,
        bias: Annotated[NDArray, dict(device="cpu", writable=False)] | None,
        out: Annotated[NDArray, dict(device="cpu")],
    ) -> None: ...
    def embedding(
        self,
        weight: Weight,
        input_ids: Annotated[NDArray, dict(device="cpu", writable=False)],
        out: Annotated[NDArray, dict(device="cpu")],
    ) -> None: ...
    def rms_norm(
        self,
        x: Annotated[NDArray, dict(device="cpu", writable=False)],
        weight: Annotated[NDArray, dict(device="cpu", writable=False)],
        epsilon: float,
        out: Annotated[NDArray, dict(device="cpu")],
    ) -> None: ...
    def add_rms_norm(
        self,
        x: Annotated[NDArray, dict(device="cpu", writable=False)],
        residual: Annotated[NDArray, dict(device="cpu")],
        weight: Annotated[NDArray, dict(device="cpu", writable=False)],
        epsilon: float,
        out: Annotated[NDArray, dict(device="cpu")],
    ) -> None: ...
    def act_and_mul(
        self, x: Annotated[NDArray, dict(device="cpu", writable=False)], out: Annotated[NDArray, dict(device="cpu")]
    ) -> None: ...
    def rotary_embedding(
        self,
        q: Annotated[NDArray, dict(device="cpu")],
        k: Annotated[NDArray, dict(device="cpu")],
        positions: Annotated[NDArray, dict(device="cpu", writable=False)],
        cos_sin: Annotated[NDArray, dict(device="cpu", writable=False)],
    ) -> None: ...
    def reshape_and_cache(
        self,
        k: Annotated[NDArray, dict(device="cpu", writable=False)],
        v: Annotated[NDArray, dict(device="cpu", writable=False)],
        kv_cache: KVCache,
        layer: int,
        slot_mapping: Annotated[NDArray, dict(device="cpu", writable=False)],
    ) -> None: ...
    def paged_attention(
        self,
        q: Annotated[NDArray, dict(device="cpu", writable=False)],
        kv_cache: KVCache,
        layer: int,
        positions: Annotated[NDArray, dict(device="cpu", writable=False)],
        query_start_loc: Annotated[NDArray, dict(device="cpu", writable=False)],
        seq_lens: Annotated[NDArray, dict(device="cpu", writable=False)],
        block_tables: Annotated[NDArray, dict(device="cpu", writable=False)],
        scale: float,
        sliding_window: int,
        out: Annotated[NDArray, dict(device="cpu")],
    ) -> None: ...
    def sample(
        self,
        logits: Annotated[NDArray, dict(device="cpu", writable=False)],
        sampling: object,
        token_ids: Annotated[NDArray, dict(device="cpu")],
    ) -> None: ...
    def logprobs(
        self,
        logits: Annotated[NDArray, dict(device="cpu", writable=False)],
        chosen: Annotated[NDArray, dict(device="cpu", writable=False)],
        token_ids: Annotated[NDArray, dict(device="cpu")],
        logprobs: Annotated[NDArray, dict(device="cpu")],
        ranks: Annotated[NDArray, dict(device="cpu")],
    ) -> None: ...

class Decoder:
    """A stack of decoder layers that runs in one call."""

    def __init__(
        self,
        embedding: Weight,
        layers: Sequence[
            tuple[
                Weight,
                Weight,
                Weight,
                Weight,
                Annotated[NDArray, dict(device="cpu", writable=False)],
                Annotated[NDArray, dict(device="cpu", writable=False)],
                Annotated[NDArray, dict(device="cpu", writable=False)] | None,
                Annotated[NDArray, dict(device="cpu", writable=False)] | None,
                Annotated[NDArray, dict(device="cpu", writable=False)] | None,
                int,
            ]
        ],
        final_norm: Annotated[NDArray, dict(device="cpu", writable=False)],
        cos_sin: Annotated[NDArray, dict(device="cpu", writable=False)],
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        epsilon: float,
        attention_scale: float,
    ) -> None: ...
    def forward(
        self,
        runtime: Runtime,
        input_ids: Annotated[NDArray, dict(device="cpu", writable=False)],
        positions: Annotated[NDArray, dict(device="cpu", writable=False)],
        slot_mapping: Annotated[NDArray, dict(device="cpu", writable=False)],
        query_start_loc: Annotated[NDArray, dict(device="cpu", writable=False)],
        seq_lens: Annotated[NDArray, dict(device="cpu", writable=False)],
        block_tables: Annotated[NDArray, dict(device="cpu", writable=False)],
        kv_cache: KVCache,
        out: Annotated[NDArray, dict(device="cpu")],
    ) -> None: ...
