"""From a configuration to a running engine: the place where all parts meet."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from octavo.backends.base import KVCacheSpec
from octavo.backends.registry import create_backend
from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.input_processor import InputProcessor
from octavo.engine.llm_engine import LLMEngine
from octavo.errors import ConfigError
from octavo.executor.cache_sizing import choose_num_blocks
from octavo.executor.model_executor import ModelExecutor
from octavo.kvcache.manager import PagedKVCacheManager
from octavo.kvcache.policies.registry import create_policy
from octavo.models.config import ModelConfig
from octavo.models.registry import build_model
from octavo.scheduler.scheduler import Scheduler
from octavo.tokenization.tokenizer import load_tokenizer
from octavo.weights.loader import open_checkpoint
from octavo.weights.quantize import quantize_checkpoint
from octavo.weights.sources import resolve_model


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine and what it was built from.

    Attributes:
        max_model_len: tokens of prompt and output together that one request may have.
        kv_cache_spec: the pool as it was allocated.
    """

    engine: LLMEngine
    config: EngineConfig
    model_config: ModelConfig
    max_model_len: int
    kv_cache_spec: KVCacheSpec


def build_engine(config: EngineConfig) -> BuiltEngine:
    """Fetch the model if need be, load it, and wire everything together."""
    collects = gc.isenabled()
    gc.disable()  # a vocabulary is 100,000 new objects and more, all of them here to stay
    try:
        return _build(config)
    finally:
        if collects:
            gc.enable()


def _build(config: EngineConfig) -> BuiltEngine:
    checkpoint = open_checkpoint(resolve_model(config.model))
    if config.quantization is not None:
        checkpoint = quantize_checkpoint(checkpoint, config.quantization)
    tokenizer = load_tokenizer(checkpoint)
    model_config = checkpoint.config
    max_model_len = resolve_max_model_len(config.scheduler.max_model_len, model_config)
    backend = create_backend(config.backend)
    model = build_model(model_config, checkpoint.tensors, backend, max_model_len)

    dtype = config.cache.kv_cache_dtype
    dtype = backend.default_kv_cache_dtype if dtype == "auto" else dtype
    one_block = model.kv_cache_spec(1, config.cache.block_size, dtype)
    num_blocks = choose_num_blocks(
        config.cache, one_block, config.scheduler.max_num_seqs * max_model_len, backend.free_memory_bytes()
    )
    spec = model.kv_cache_spec(num_blocks, config.cache.block_size, dtype)
    executor = ModelExecutor(
        model,
        backend,
        backend.allocate_kv_cache(spec),
        block_size=config.cache.block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=max_model_len,
    )
    manager = PagedKVCacheManager(
        num_blocks,
        config.cache.block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        policy=create_policy(config.cache.eviction_policy, num_blocks, config.cache.block_size),
    )
    core = EngineCore(Scheduler(config.scheduler, manager, max_model_len), executor)
    eos_token_ids = frozenset(model_config.eos_token_ids) | frozenset(tokenizer.eos_token_ids)
    engine = LLMEngine(core, tokenizer, InputProcessor(tokenizer, model_config.vocab_size, eos_token_ids))
    return BuiltEngine(engine, config, model_config, max_model_len, spec)


def resolve_max_model_len(wanted: int | None, model_config: ModelConfig) -> int:
    """The longest request. Raises :class:`ConfigError` if more is wanted than the model has positions for."""
    limit = model_config.max_position_embeddings
    if wanted is not None and wanted > limit:
        raise ConfigError(f"max_model_len is {wanted}, but the model was made for {limit} positions")
    return limit if wanted is None else wanted
