"""Options that several commands share, and what they turn into."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.sampling_params import SamplingParams

Subparsers = Any
"""What ``ArgumentParser.add_subparsers`` returns; argparse gives its type no public name."""

MODEL_HELP = (
    "'default' (SmolLM2-135M-Instruct, fetched once), a path to a .gguf file or to a Hugging Face folder, "
    "org/name on the Hugging Face Hub, or org/name/file.gguf there"
)

_ENGINE_KEYWORDS = (
    "quantization",
    "backend",
    "device",
    "num_threads",
    "max_model_len",
    "max_num_batched_tokens",
    "block_size",
    "num_blocks",
    "kv_cache_dtype",
    "eviction_policy",
)
_NEED_TEMPERATURE = ("top_p", "top_k", "min_p")


def add_command(commands: Subparsers, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    """A command's own parser, with its examples below the options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_sampling_options(parser: argparse.ArgumentParser, what: str) -> None:
    """How tokens are chosen; ``what`` is "answer" or whatever the command calls it."""
    group = parser.add_argument_group("choosing tokens")
    group.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help=f"end the {what} after N tokens (default: when the model ends it or its context is full; ctrl-C stops it)",
    )
    group.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0 takes the most likely token each time; more lets chance in (default: 0)",
    )
    group.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens that add up to P")
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    group.add_argument(
        "--min-p", type=float, metavar="P", help="draw from tokens at least P times as likely as the likeliest"
    )
    group.add_argument(
        "--seed", type=int, metavar="S", help="the same seed draws the same answer (default: a new one each time)"
    )


def add_model_option(parser: argparse.ArgumentParser) -> None:
    """``--model M``."""
    parser.add_argument("--model", default="default", metavar="M", help=f"{MODEL_HELP} (default: default)")


def add_backend_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Where the arithmetic runs; returns the group, for a command's further options."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--backend",
        metavar="B",
        help="native (C++), torch (needs PyTorch) or reference (numpy, slow, for reading) (default: native)",
    )
    group.add_argument(
        "--quantization", metavar="Q", help="int8 or int4: quantise a model of plain numbers while it is loaded"
    )
    group.add_argument("--device", metavar="D", help="cpu or cuda; cuda needs --backend torch (default: cpu)")
    return group


def add_cache_options(group: argparse._ArgumentGroup) -> None:
    """The shape of the KV cache."""
    group.add_argument("--block-size", type=int, metavar="N", help="tokens per KV block, a power of two (default: 16)")
    group.add_argument(
        "--kv-cache-dtype",
        metavar="T",
        help="bfloat16, float32, or int8: half the memory of bfloat16 (default: the backend's own)",
    )


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """All options of an engine that serves one person."""
    group = add_backend_options(parser)
    group.add_argument(
        "--num-threads", type=int, metavar="N", help="threads of the native backend (default: cores we may use)"
    )
    group.add_argument(
        "--max-model-len", type=int, metavar="N", help="tokens of prompt and answer together (default: the model's own)"
    )
    group.add_argument(
        "--max-num-batched-tokens",
        type=int,
        metavar="N",
        help="tokens computed in one step; a longer prompt is computed in chunks (default: 512)",
    )
    add_cache_options(group)
    group.add_argument(
        "--num-blocks", type=int, metavar="N", help="KV blocks in the pool (default: enough for --max-model-len)"
    )
    add_eviction_option(group)


def add_eviction_option(group: argparse._ArgumentGroup) -> None:
    """``--eviction-policy P``."""
    from octavo.config import EVICTION_POLICIES, CacheConfig

    group.add_argument(
        "--eviction-policy",
        metavar="P",
        help="which cached block goes when memory is needed: "
        f"{', '.join(EVICTION_POLICIES)} (default: {CacheConfig().eviction_policy})",
    )


def engine_config(arguments: argparse.Namespace, model: str, **fixed: Any) -> EngineConfig:
    """The engine that the options describe. Raises :class:`ConfigError` for a value out of range."""
    from octavo.config import EngineConfig

    given = {name: getattr(arguments, name, None) for name in _ENGINE_KEYWORDS}
    return EngineConfig.from_keywords(model, **{k: v for k, v in given.items() if v is not None}, **fixed)


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """The parameters that the options describe.

    Raises:
        ConfigError: an option would change nothing.
        RequestError: a value is out of range.
    """
    from octavo.sampling_params import SamplingParams

    given = {name: getattr(arguments, name) for name in _NEED_TEMPERATURE if getattr(arguments, name) is not None}
    if given and arguments.temperature is None:
        option = "--" + next(iter(given)).replace("_", "-")
        raise ConfigError(f"{option} changes nothing while the most likely token is taken; give --temperature, too")
    return SamplingParams(
        temperature=arguments.temperature or 0.0, seed=arguments.seed, max_tokens=arguments.max_tokens, **given
    )
