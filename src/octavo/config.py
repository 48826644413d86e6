"""Configuration as values: frozen, composed, checked when made; ``None`` means "decide for me".

The engine resolves every ``None`` once, into a new object; nothing downstream asks again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import ConfigError

KV_CACHE_DTYPES = ("auto", "bfloat16", "float32", "int8")
QUANTIZATIONS = ("int8", "int4")
EVICTION_POLICIES = ("lru", "radix-lru", "sieve", "s3-fifo", "gdsf", "reuse")


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """The paged KV cache.

    Attributes:
        block_size: tokens per block.
        num_blocks: blocks in the pool; ``None``: from ``kv_cache_memory_bytes`` or the memory that is really there.
        kv_cache_memory_bytes: size of the pool in bytes, instead of ``num_blocks``.
        kv_cache_dtype: ``auto`` takes the backend's default (bfloat16 on native); ``int8`` takes about half its memory.
        enable_prefix_caching: share full blocks between requests that begin alike.
        eviction_policy: which cached block goes when a blank one is needed, one of
            ``EVICTION_POLICIES``, each a file of ``octavo.kvcache.policies``.
    """

    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    enable_prefix_caching: bool = True
    eviction_policy: str = "reuse"

    def __post_init__(self) -> None:
        _require_positive(self, "block_size", "num_blocks", "kv_cache_memory_bytes")
        if not isinstance(self.enable_prefix_caching, bool):
            raise ConfigError(f"enable_prefix_caching must be true or false, not {self.enable_prefix_caching!r}")
        if self.eviction_policy not in EVICTION_POLICIES:
            known = ", ".join(EVICTION_POLICIES)
            raise ConfigError(f"eviction_policy must be one of {known}, not {self.eviction_policy!r}")
        if self.block_size > 128 or self.block_size & (self.block_size - 1):
            raise ConfigError(f"block_size must be a power of two up to 128, not {self.block_size}")
        if self.num_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise ConfigError("give num_blocks or kv_cache_memory_bytes, not both")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise ConfigError(f"kv_cache_dtype must be one of {', '.join(KV_CACHE_DTYPES)}, not {self.kv_cache_dtype}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """What one step may hold.

    Attributes:
        max_num_batched_tokens: token budget of one step; a longer prompt is prefilled in chunks.
        max_num_seqs: requests that may run at once.
        max_model_len: tokens of prompt and output together; ``None``: the model's own limit.
        max_waiting_requests: one more is refused at once.
        max_queue_time_s: a request that has not started by then ends with ``finish_reason="timeout"``.
    """

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 64
    max_model_len: int | None = None
    max_waiting_requests: int | None = None
    max_queue_time_s: float | None = None

    def __post_init__(self) -> None:
        _require_positive(self, "max_num_batched_tokens", "max_num_seqs", "max_model_len", "max_waiting_requests")
        seconds = self.max_queue_time_s
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise ConfigError(f"max_queue_time_s must be a positive number, not {seconds!r}")
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_seqs ({self.max_num_seqs}) must not exceed max_num_batched_tokens "
                f"({self.max_num_batched_tokens}): a step gives every running request one token"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendConfig:
    """Where the arithmetic runs.

    Attributes:
        backend: ``native`` (C++ on the CPU), ``torch``, ``reference`` (numpy), or ``auto``.
        device: ``cpu`` or ``cuda``; ``auto`` takes what the backend finds.
        num_threads: threads of the native backend; ``None``: what affinity and cgroup quota allow.
    """

    backend: str = "auto"
    device: str = "auto"
    num_threads: int | None = None

    def __post_init__(self) -> None:
        _require_positive(self, "num_threads")
        if self.device not in ("auto", "cpu") and not str(self.device).startswith("cuda"):
            raise ConfigError(f"device must be auto, cpu or cuda, not {self.device}")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Everything an engine needs to know.

    Attributes:
        quantization: ``int8`` or ``int4`` quantises a model of plain numbers while it is loaded; ``None``: as it is.
    """

    model: str = "default"
    quantization: str | None = None
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)

    def __post_init__(self) -> None:
        if self.quantization is not None and self.quantization not in QUANTIZATIONS:
            known = " or ".join(QUANTIZATIONS)
            raise ConfigError(f"quantization must be {known}, or left out, not {self.quantization!r}")

    @classmethod
    def from_keywords(cls, model: str = "default", quantization: str | None = None, **keywords: Any) -> EngineConfig:
        """Sort flat keywords, named as vLLM names them, into their groups. An unknown keyword is an error."""
        groups: dict[str, Any] = {}
        for name, kind in _GROUPS.items():
            own = {f.name for f in dataclasses.fields(kind)}
            groups[name] = kind(**{key: keywords.pop(key) for key in list(keywords) if key in own})
        if keywords:
            known = sorted(["quantization", *(f.name for kind in _GROUPS.values() for f in dataclasses.fields(kind))])
            raise ConfigError(f"unknown keyword {', '.join(sorted(keywords))}; known: {', '.join(known)}")
        return cls(model=model, quantization=quantization, **groups)


_GROUPS: dict[str, type[Any]] = {"cache": CacheConfig, "scheduler": SchedulerConfig, "backend": BackendConfig}


def _require_positive(config: object, *names: str) -> None:
    optional = {field.name for field in dataclasses.fields(config) if field.default is None}  # type: ignore[arg-type]
    for name in names:
        value = getattr(config, name)
        if value is None and name in optional:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} must be an integer, not {value!r}")
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}")
