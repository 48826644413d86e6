"""How many blocks the pool gets, in numbers."""

from __future__ import annotations

import pytest

from octavo.backends.base import KVCacheSpec
from octavo.config import CacheConfig
from octavo.errors import ConfigError
from octavo.executor.cache_sizing import FREE_MEMORY_SHARE, choose_num_blocks

ONE_BLOCK = KVCacheSpec(num_layers=3, num_blocks=1, block_size=16, num_kv_heads=2, head_dim=8, dtype="bfloat16")
BLOCK_BYTES = 2 * 3 * 2 * 8 * 2 * 16
PLENTY = 10**12


def test_bytes() -> None:
    assert ONE_BLOCK.bytes_per_token == 192
    assert ONE_BLOCK.num_bytes == BLOCK_BYTES == 3072


def test_as_told() -> None:
    assert choose_num_blocks(CacheConfig(num_blocks=7), ONE_BLOCK, 10**6, 0) == 7


@pytest.mark.parametrize(("num_bytes", "num_blocks"), [(3072, 1), (6143, 1), (6144, 2), (10**6, 325)])
def test_from_bytes_whole_blocks_only(num_bytes: int, num_blocks: int) -> None:
    assert choose_num_blocks(CacheConfig(kv_cache_memory_bytes=num_bytes), ONE_BLOCK, 16, 0) == num_blocks


@pytest.mark.parametrize(("max_tokens", "num_blocks"), [(1, 1), (16, 1), (17, 2), (64 * 2048, 8192)])
def test_no_more_than_all_running_requests_could_fill(max_tokens: int, num_blocks: int) -> None:
    assert choose_num_blocks(CacheConfig(), ONE_BLOCK, max_tokens, PLENTY) == num_blocks


def test_cache_sized_blindly() -> None:
    """Memory that is not there is not promised, and the dtype that is stored is the one that counts."""
    free = 1_000_000
    num_blocks = choose_num_blocks(CacheConfig(), ONE_BLOCK, 10**9, free)
    assert num_blocks == 162
    assert num_blocks * BLOCK_BYTES <= free * FREE_MEMORY_SHARE < (num_blocks + 1) * BLOCK_BYTES
    wide = KVCacheSpec(num_layers=3, num_blocks=1, block_size=16, num_kv_heads=2, head_dim=8, dtype="float32")
    assert choose_num_blocks(CacheConfig(), wide, 10**9, free) == 81
    narrow = KVCacheSpec(num_layers=3, num_blocks=1, block_size=16, num_kv_heads=2, head_dim=8, dtype="int8")
    assert narrow.bytes_per_token == 2 * 3 * 2 * (8 + 4)
    assert choose_num_blocks(CacheConfig(), narrow, 10**9, free) == 217


@pytest.mark.parametrize(
    ("config", "free", "source"),
    [(CacheConfig(kv_cache_memory_bytes=3071), PLENTY, "kv_cache_memory_bytes"), (CacheConfig(), 6143, "free memory")],
)
def test_not_even_one_block(config: CacheConfig, free: int, source: str) -> None:
    with pytest.raises(ConfigError) as error:
        choose_num_blocks(config, ONE_BLOCK, 10**6, free)
    assert str(error.value) == f"{source} is too small for one block of 3,072 bytes; give more or smaller blocks"
