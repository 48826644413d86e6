"""How many blocks the pool gets."""

from __future__ import annotations

from octavo.backends.base import KVCacheSpec
from octavo.config import CacheConfig
from octavo.errors import ConfigError

FREE_MEMORY_SHARE = 0.5
"""Of the memory that is free after the weights are loaded; the rest is for activations and for the machine's others."""


def choose_num_blocks(config: CacheConfig, one_block: KVCacheSpec, max_tokens: int, free_memory_bytes: int) -> int:
    """Blocks of the pool: as told, or as many as all running requests could fill, if memory for them is really there.

    Args:
        one_block: the cache's shape with a single block.
        max_tokens: what all running requests could hold at their longest.
        free_memory_bytes: memory that is free now.

    Raises:
        ConfigError: not even one block fits.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    block_bytes = one_block.num_bytes
    if config.kv_cache_memory_bytes is not None:
        num_blocks, source = config.kv_cache_memory_bytes // block_bytes, "kv_cache_memory_bytes"
    else:
        affordable = int(free_memory_bytes * FREE_MEMORY_SHARE) // block_bytes
        num_blocks, source = min(affordable, -(-max_tokens // config.block_size)), "free memory"
    if num_blocks < 1:
        raise ConfigError(f"{source} is too small for one block of {block_bytes:,} bytes; give more or smaller blocks")
    return num_blocks
