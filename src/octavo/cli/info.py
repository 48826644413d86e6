"""``octavo info``: what a model is, what its KV cache costs, and what this machine gives it; or what a server holds."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from octavo.cli import options
from octavo.cli.live import DEFAULT_URL, fetch_memory, memory_lines

if TYPE_CHECKING:
    from octavo.backends.base import Backend
    from octavo.backends.native.cpu_plan import CpuPlan
    from octavo.config import CacheConfig
    from octavo.weights.checkpoint import Checkpoint

_EXAMPLES = """\
The model is fetched if it is not here yet. Weights stay on disk; what fits is counted after taking them off.

examples:
  octavo info
  octavo info path/to/model.gguf --kv-cache-dtype float32
  octavo info path/to/folder --quantization int8
  octavo info --json
  octavo info --live                     what the KV cache of the server on this machine holds
  octavo info --live http://host:8000    (the key in OPENAI_API_KEY is sent along)"""


def add_parser(commands: options.Subparsers) -> None:
    """Add ``octavo info``."""
    parser = options.add_command(commands, "info", "describe a model, its KV cache and this machine", _EXAMPLES)
    parser.add_argument("model", nargs="?", default="default", metavar="M", help=options.MODEL_HELP)
    parser.add_argument(
        "--live",
        nargs="?",
        const=DEFAULT_URL,
        metavar="URL",
        help=f"instead: what the KV cache of a running server holds, by request and by age (default: {DEFAULT_URL})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options.add_cache_options(options.add_backend_options(parser))
    parser.set_defaults(command=info)


def info(arguments: argparse.Namespace) -> int:
    """Look and tell."""
    if arguments.live is not None:
        report = fetch_memory(arguments.live)
        print(json.dumps(report) if arguments.json else "\n".join(memory_lines(report)))
        return 0
    config = options.engine_config(arguments, arguments.model)

    from octavo.backends.native import cpu_plan
    from octavo.backends.registry import create_backend
    from octavo.weights.loader import open_checkpoint
    from octavo.weights.quantize import quantize_checkpoint
    from octavo.weights.sources import resolve_model

    checkpoint = open_checkpoint(resolve_model(config.model))
    if config.quantization is not None:
        checkpoint = quantize_checkpoint(checkpoint, config.quantization)
    model = describe_model(checkpoint)
    cache = describe_cache(checkpoint, create_backend(config.backend), config.cache)
    plan = cpu_plan()
    if arguments.json:
        print(json.dumps({**model, "kv_cache": cache, "cpu": dataclasses.asdict(plan)}))
    else:
        print("\n".join([*_model_lines(model), *_cache_lines(cache, model["context_length"]), *_cpu_lines(plan)]))
    return 0


def describe_model(checkpoint: Checkpoint) -> dict[str, Any]:
    """Sizes, as the files say them, or as quantising them makes them."""
    config = checkpoint.config
    return {
        "name": config.name,
        "path": str(checkpoint.path),
        "format": checkpoint.format,
        "architecture": config.architecture,
        "parameters": config.num_parameters,
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "weight_bytes": sum(checkpoint.bytes_by_type.values()),
        "weight_bytes_by_type": dict(checkpoint.bytes_by_type),
    }


def describe_cache(checkpoint: Checkpoint, backend: Backend, cache: CacheConfig) -> dict[str, Any]:
    """What the KV cache costs, and how much of it fits into the memory that is free once the weights are loaded."""
    from octavo.backends.base import KVCacheSpec
    from octavo.executor.cache_sizing import FREE_MEMORY_SHARE

    config = checkpoint.config
    dtype = backend.default_kv_cache_dtype if cache.kv_cache_dtype == "auto" else cache.kv_cache_dtype
    one_block = KVCacheSpec(config.num_layers, 1, cache.block_size, config.num_kv_heads, config.head_dim, dtype)
    free_bytes = max(backend.free_memory_bytes() - sum(checkpoint.bytes_by_type.values()), 0)
    memory_bytes = int(free_bytes * FREE_MEMORY_SHARE)
    num_blocks = memory_bytes // one_block.num_bytes
    return {
        "dtype": dtype,
        "bytes_per_token": one_block.bytes_per_token,
        "block_size": cache.block_size,
        "bytes_per_block": one_block.num_bytes,
        "memory_bytes": memory_bytes,
        "blocks_that_fit": num_blocks,
        "tokens_that_fit": num_blocks * cache.block_size,
    }


# ---- for people ---------------------------------------------------------------------------------------------------


def _model_lines(model: dict[str, Any]) -> list[str]:
    kinds = ", ".join(f"{kind} {_megabytes(size)}" for kind, size in model["weight_bytes_by_type"].items())
    layers = f"{model['num_layers']} layers, hidden size {model['hidden_size']}"
    return [
        f"model {model['name']}",
        _row("file", f"{model['path']} ({model['format']})"),
        _row("architecture", f"{model['architecture']}, {layers}"),
        _row("attention", f"{model['num_heads']} query heads, {model['num_kv_heads']} KV heads of {model['head_dim']}"),
        _row("parameters", f"{model['parameters'] / 1e6:,.1f} million"),
        _row("weights", f"{_megabytes(model['weight_bytes'])}: {kinds}"),
        _row("context", f"{model['context_length']:,} tokens"),
    ]


def _cache_lines(cache: dict[str, Any], context_length: int) -> list[str]:
    blocks_of_one = -(-context_length // cache["block_size"])
    fits = f"{cache['blocks_that_fit']:,} blocks = {cache['tokens_that_fit']:,} tokens"
    return [
        f"KV cache, {cache['dtype']}",
        _row("per token", f"{cache['bytes_per_token']:,} bytes"),
        _row("per block", f"{cache['bytes_per_block']:,} bytes ({cache['block_size']} tokens)"),
        _row("one request", f"at most {blocks_of_one:,} blocks ({context_length:,} tokens)"),
        _row("fits", f"{fits} in {_megabytes(cache['memory_bytes'])}, half of the memory that is free"),
    ]


def _cpu_lines(plan: CpuPlan) -> list[str]:
    quota = "no quota" if plan.quota_cores is None else f"a quota of {plan.quota_cores:g}"
    return [
        "CPU",
        _row("threads", f"{plan.num_threads} ({plan.threads_reason})"),
        _row("cores", f"{plan.cores_online} online, {plan.cores_affinity} by affinity, {quota} by control group"),
        _row("instructions", f"{plan.isa} ({plan.isa_reason}); available: {', '.join(plan.available_isas)}"),
    ]


def _row(name: str, value: str) -> str:
    return f"  {name:<13} {value}"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
