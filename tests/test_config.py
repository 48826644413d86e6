"""Configuration: every bound and its message, flat keywords, values that cannot change."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from octavo.config import BackendConfig, CacheConfig, EngineConfig, SchedulerConfig
from octavo.errors import ConfigError, OctavoError


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"block_size": 0}, "block_size must be at least 1, not 0"),
        ({"block_size": 12}, "block_size must be a power of two up to 128, not 12"),
        ({"block_size": 256}, "block_size must be a power of two up to 128, not 256"),
        ({"block_size": 16.0}, "block_size must be an integer, not 16.0"),
        ({"block_size": None}, "block_size must be an integer, not None"),
        ({"num_blocks": 0}, "num_blocks must be at least 1, not 0"),
        ({"num_blocks": True}, "num_blocks must be an integer, not True"),
        ({"num_blocks": "64"}, "num_blocks must be an integer, not '64'"),
        ({"kv_cache_memory_bytes": -1}, "kv_cache_memory_bytes must be at least 1, not -1"),
        ({"kv_cache_memory_bytes": 1e9}, "kv_cache_memory_bytes must be an integer, not 1000000000.0"),
        ({"num_blocks": 1, "kv_cache_memory_bytes": 1}, "give num_blocks or kv_cache_memory_bytes, not both"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype must be one of auto, bfloat16, float32, int8, not fp8"),
        ({"enable_prefix_caching": "no"}, "enable_prefix_caching must be true or false, not 'no'"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be at least 1, not 0"),
        ({"max_num_batched_tokens": None}, "max_num_batched_tokens must be an integer, not None"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, not 0"),
        ({"max_model_len": 0}, "max_model_len must be at least 1, not 0"),
        ({"max_waiting_requests": 0}, "max_waiting_requests must be at least 1, not 0"),
        ({"max_queue_time_s": 0}, "max_queue_time_s must be a positive number, not 0"),
        ({"max_queue_time_s": float("nan")}, "max_queue_time_s must be a positive number, not nan"),
        ({"max_queue_time_s": "1"}, "max_queue_time_s must be a positive number, not '1'"),
        (
            {"max_num_seqs": 9, "max_num_batched_tokens": 8},
            "max_num_seqs (9) must not exceed max_num_batched_tokens (8): a step gives every running request one token",
        ),
        ({"quantization": "int5"}, "quantization must be int8 or int4, or left out, not 'int5'"),
        ({"num_threads": 0}, "num_threads must be at least 1, not 0"),
        ({"device": "tpu"}, "device must be auto, cpu or cuda, not tpu"),
        ({"device": 3}, "device must be auto, cpu or cuda, not 3"),
    ],
)
def test_what_is_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        EngineConfig.from_keywords(**keywords)
    assert str(error.value) == message
    assert isinstance(error.value, OctavoError)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    "keywords",
    [
        {"block_size": 1},
        {"block_size": 128},
        {"num_blocks": 1},
        {"kv_cache_memory_bytes": 1},
        {"kv_cache_dtype": "float32"},
        {"kv_cache_dtype": "int8"},
        {"quantization": "int4"},
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 64, "max_num_seqs": 64},
        {"max_model_len": 1},
        {"max_waiting_requests": 1},
        {"max_queue_time_s": 0.001},
        {"max_queue_time_s": 1},
        {"num_threads": 1},
        {"device": "cuda:1"},
    ],
)
def test_what_is_taken(keywords: dict[str, Any]) -> None:
    config = EngineConfig.from_keywords("model", **keywords)
    found = {**dataclasses.asdict(config.cache), **dataclasses.asdict(config.scheduler)}
    found |= {**dataclasses.asdict(config.backend), "quantization": config.quantization}
    assert found.items() >= keywords.items()
    assert config.model == "model"


def test_keywords_go_to_their_groups() -> None:
    config = EngineConfig.from_keywords(
        "m", block_size=8, num_blocks=9, max_num_seqs=7, backend="native", num_threads=2
    )
    assert config == EngineConfig(
        model="m",
        cache=CacheConfig(block_size=8, num_blocks=9),
        scheduler=SchedulerConfig(max_num_seqs=7),
        backend=BackendConfig(backend="native", num_threads=2),
    )


def test_an_unknown_keyword_is_named_beside_the_known_ones() -> None:
    with pytest.raises(ConfigError) as error:
        EngineConfig.from_keywords(swap_space=4, best_of=2, block_size=8)
    assert str(error.value) == (
        "unknown keyword best_of, swap_space; known: backend, block_size, device, enable_prefix_caching, "
        "eviction_policy, kv_cache_dtype, kv_cache_memory_bytes, max_model_len, max_num_batched_tokens, max_num_seqs, "
        "max_queue_time_s, max_waiting_requests, num_blocks, num_threads, quantization"
    )


@pytest.mark.parametrize("config", [CacheConfig(), SchedulerConfig(), BackendConfig(), EngineConfig()])
def test_configurations_are_values(config: Any) -> None:
    assert config == type(config)()
    assert hash(config) == hash(type(config)())
    for field in dataclasses.fields(config):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, field.name, None)
    with pytest.raises((AttributeError, TypeError)):
        config.something_else = 1
    with pytest.raises(TypeError):
        type(config)(1)
