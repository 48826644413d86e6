"""``octavo simulate``: a fleet of replicas through a workload, on a virtual clock."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli import options
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from octavo.simulator.fleet import Fleet
    from octavo.simulator.model_shape import ModelShape
    from octavo.simulator.plan import Trial
    from octavo.simulator.simulation import Deployment
    from octavo.simulator.workload import WorkloadRequest

CPU = "cpu"
"""The profile that is measured here, where it is first asked for."""

_EXAMPLES = """\
The engine's own scheduler and memory manager make every decision; only the model is replaced by a cost model.
A workload is a trace file (Mooncake, coding agents, Azure, BurstGPT, ShareGPT; also .gz) or a generator:
poisson, bursts, shared-prompts, chat, agents, with numbers after a colon.

examples:
  octavo simulate conversation_trace.jsonl.gz --replicas 4 --router prefix-aware
  octavo simulate chat:users=2000,duration_s=600 --plan --slo-ttft 1 --slo-tpot 0.05
  octavo simulate poisson:rate=5 --hardware l40s --model qwen3-8b --plot waiting.png
  octavo simulate poisson:rate=0.5,prompt_tokens=200 --hardware cpu
  octavo simulate --calibrate machine.json"""


def add_parser(commands: options.Subparsers) -> None:
    """Add ``octavo simulate``."""
    parser = options.add_command(commands, "simulate", "try a fleet before buying it", _EXAMPLES)
    parser.add_argument("trace", nargs="?", metavar="TRACE", help="a trace file, or a generator such as chat:users=100")
    parser.add_argument(
        "--calibrate",
        type=Path,
        metavar="FILE",
        help="instead: measure the native engine with --model on this machine, save a profile for --hardware",
    )
    _add_replica_options(parser)
    _add_fleet_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw waiting times and load (needs octavo[plot])")
    parser.set_defaults(command=simulate)


def _add_replica_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("each replica")
    group.add_argument(
        "--model",
        metavar="M",
        help="a known shape (llama-3.1-8b, qwen3-32b, …), a config.json, or whatever octavo run takes "
        "(default: llama-3.1-8b; with --calibrate or cpu: default)",
    )
    group.add_argument(
        "--hardware",
        default="h200",
        metavar="H",
        help="h100, h200, a100, l40s, cpu (this one, measured once) or a calibrated profile (default: h200)",
    )
    group.add_argument(
        "--kv-cache-dtype",
        metavar="T",
        choices=("bfloat16", "float32", "int8"),
        help="of the KV cache (default: bfloat16)",
    )
    group.add_argument("--kv-cache-gib", type=float, metavar="G", help="KV cache (default: what the weights leave)")
    group.add_argument(
        "--block-size", type=int, default=64, metavar="N", help="tokens per KV block; larger is faster (default: 64)"
    )
    group.add_argument(
        "--max-num-batched-tokens", type=int, default=2048, metavar="N", help="tokens in one step (default: 2048)"
    )
    group.add_argument("--max-num-seqs", type=int, default=256, metavar="N", help="requests at once (default: 256)")
    options.add_eviction_option(group)
    group.add_argument("--max-model-len", type=int, metavar="N", help="tokens per request (default: the model's own)")


def _add_fleet_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the fleet and its load")
    group.add_argument("--replicas", type=int, default=1, metavar="N", help="how many (default: 1)")
    group.add_argument(
        "--router",
        default="prefix-aware",
        metavar="R",
        help="round-robin, least-loaded or prefix-aware (default: prefix-aware)",
    )
    group.add_argument("--rate-scale", type=float, default=1.0, metavar="F", help="arrivals F times as fast")
    group.add_argument("--copies", type=int, default=1, metavar="N", help="N independent groups of such users at once")
    group.add_argument("--plan", action="store_true", help="find the smallest fleet that meets the service level")
    group.add_argument("--slo-ttft", type=float, default=2.0, metavar="S", help="first token within (default: 2 s)")
    group.add_argument("--slo-tpot", type=float, default=0.05, metavar="S", help="then, per token (default: 0.05 s)")
    group.add_argument(
        "--slo-share", type=float, default=0.99, metavar="P", help="of the requests, for --plan (default: 0.99)"
    )


def simulate(arguments: argparse.Namespace) -> int:
    """Run, and tell."""
    if arguments.calibrate is not None:
        from octavo.cli.calibrate import calibrate

        return calibrate(arguments.model or "default", arguments.calibrate)
    if arguments.trace is None:
        raise ConfigError("say which workload: a trace file or a generator such as chat:users=100")

    from octavo.simulator.plots import draw_report, require_matplotlib
    from octavo.simulator.report import format_report, make_report

    if arguments.plot is not None:
        require_matplotlib()
    deployment = make_deployment(arguments)
    workload = read_workload(arguments)
    gc.disable()  # a run leaves no cycles behind, and the collector would walk over millions of live objects for them
    try:
        fleet = _plan(arguments, deployment, workload) if arguments.plan else _run(arguments, deployment, workload)
    finally:
        gc.enable()
    report = make_report(fleet)
    if arguments.json:
        print(json.dumps(report.to_json()))
    else:
        print(format_report(report))
    if arguments.plot is not None:
        title = f"{report.num_replicas} × {arguments.hardware}, {deployment.model.name}, {Path(arguments.trace).name}"
        draw_report(report, fleet.recorder, title, arguments.plot)
    return 0


def _run(arguments: argparse.Namespace, deployment: Deployment, workload: Sequence[WorkloadRequest]) -> Fleet:
    fleet = deployment.fleet(arguments.replicas)
    with _progress(len(workload) * arguments.copies) as advance:
        fleet.run(_copied(arguments, workload), advance)
    return fleet


def _plan(arguments: argparse.Namespace, deployment: Deployment, workload: Sequence[WorkloadRequest]) -> Fleet:
    from octavo.simulator.simulation import plan_fleet

    def tell(trial: Trial) -> None:
        found = "too many requests miss" if trial.goodput_share is None else f"{trial.goodput_share:.2%} as expected"
        print(f"{trial.num_replicas:5} replicas: {found}", file=sys.stderr)

    num_replicas, fleet = plan_fleet(deployment, list(_copied(arguments, workload)), arguments.slo_share, tell)
    if not arguments.json:
        print(f"smallest fleet: {num_replicas}\n")
    return fleet


# ---- what the options describe ------------------------------------------------------------------------------------


def make_deployment(arguments: argparse.Namespace) -> Deployment:
    """Raises :class:`ConfigError` for what does not exist or does not fit."""
    from octavo.config import CacheConfig, SchedulerConfig
    from octavo.simulator.calibration import MeasuredProfile
    from octavo.simulator.cost_model import CostModel, RooflineCostModel
    from octavo.simulator.hardware import PROFILES
    from octavo.simulator.recorder import ServiceLevel
    from octavo.simulator.simulation import Deployment, kv_cache_bytes

    _check_positive(arguments, "replicas", "copies", "rate_scale", "block_size", "slo_ttft", "slo_tpot")
    _check_positive(arguments, "kv_cache_gib", "max_model_len")
    if not 0 < arguments.slo_share <= 1:
        raise ConfigError(f"--slo-share must be above 0 and at most 1, not {arguments.slo_share}")
    cost: CostModel
    if arguments.hardware in PROFILES:
        hardware = PROFILES[arguments.hardware]
        model = find_model(arguments.model or "llama-3.1-8b")
        if arguments.kv_cache_dtype is not None:
            model = with_kv_cache_dtype(model, arguments.kv_cache_dtype)
        cost, memory_bytes = RooflineCostModel(model, hardware), hardware.memory_bytes
    elif arguments.hardware == CPU:
        from octavo.cli.calibrate import this_cpu

        if arguments.kv_cache_dtype is not None:
            raise ConfigError("cpu is measured with the native cache; leave out --kv-cache-dtype")
        profile = this_cpu(arguments.model or "default")
        model, cost, memory_bytes = profile.model, profile.cost, profile.memory_bytes
    elif Path(arguments.hardware).is_file():
        profile = MeasuredProfile.load(Path(arguments.hardware))
        if arguments.model is not None:
            raise ConfigError(f"{arguments.hardware} was measured with {profile.model.name}; leave out --model")
        if arguments.kv_cache_dtype is not None:
            raise ConfigError(f"{arguments.hardware} was measured with a cache of its own; leave out --kv-cache-dtype")
        model, cost, memory_bytes = profile.model, profile.cost, profile.memory_bytes
    else:
        raise ConfigError(
            f"--hardware must be {', '.join(PROFILES)}, {CPU} or a file from --calibrate, not {arguments.hardware}"
        )
    given = arguments.kv_cache_gib
    return Deployment(
        model=model,
        cost=cost,
        kv_cache_bytes=kv_cache_bytes(model, memory_bytes) if given is None else given * 2**30,
        block_size=arguments.block_size,
        scheduler=SchedulerConfig(
            max_num_batched_tokens=arguments.max_num_batched_tokens, max_num_seqs=arguments.max_num_seqs
        ),
        max_model_len=arguments.max_model_len or model.max_position_embeddings,
        eviction_policy=arguments.eviction_policy or CacheConfig().eviction_policy,
        router=arguments.router,
        service_level=ServiceLevel(arguments.slo_ttft, arguments.slo_tpot),
    )


def find_model(name: str) -> ModelShape:
    """A known shape, a ``config.json``, or a model that Octavo can load (its weights are counted, not read)."""
    from octavo.simulator.model_shape import KNOWN_SHAPES

    if name in KNOWN_SHAPES:
        return KNOWN_SHAPES[name]

    from octavo.models.config import ModelConfig
    from octavo.weights.loader import open_checkpoint
    from octavo.weights.sources import resolve_model

    path = Path(name)
    if path.name == "config.json":
        if not path.is_file():
            raise ConfigError(f"there is no {path}")
        return shape_of(ModelConfig.from_hugging_face(json.loads(path.read_text()), None, path))
    checkpoint = open_checkpoint(resolve_model(name))
    return shape_of(checkpoint.config, sum(checkpoint.bytes_by_type.values()))


def with_kv_cache_dtype(model: ModelShape, dtype: str) -> ModelShape:
    """The same model with another KV cache; scales of int8 count with its elements."""
    from octavo.backends.base import KVCacheSpec

    one_head = KVCacheSpec(1, 1, 1, 1, model.head_dim, dtype)
    return dataclasses.replace(model, bytes_per_kv_element=one_head.bytes_per_token / (2 * model.head_dim))


def shape_of(config: object, weight_bytes: int | None = None) -> ModelShape:
    """The sizes of a model; bfloat16 unless ``weight_bytes`` says how large its file is."""
    from octavo.models.config import ModelConfig
    from octavo.simulator.model_shape import ModelShape

    assert isinstance(config, ModelConfig)
    return ModelShape(
        name=config.name,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=config.tie_word_embeddings,
        bytes_per_weight=2.0 if weight_bytes is None else weight_bytes / config.num_parameters,
    )


def read_workload(arguments: argparse.Namespace) -> list[WorkloadRequest]:
    """The workload at the wanted rate, one copy. Raises :class:`ConfigError` if it is empty."""
    from octavo.simulator.workload import scale_rate
    from octavo.simulator.workload_source import open_workload

    requests = open_workload(arguments.trace)
    workload = list(requests if arguments.rate_scale == 1.0 else scale_rate(requests, arguments.rate_scale))
    if not workload:
        raise ConfigError(f"{arguments.trace} has no requests")
    return workload


def _copied(arguments: argparse.Namespace, workload: Sequence[WorkloadRequest]) -> Iterator[WorkloadRequest]:
    from octavo.simulator.workload_source import overlay

    return overlay(workload, arguments.copies) if arguments.copies > 1 else iter(workload)


def _check_positive(arguments: argparse.Namespace, *names: str) -> None:
    for name in names:
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be positive, not {value}")


@contextmanager
def _progress(num_requests: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error, moved by whole percents; nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield lambda: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("requests", total=num_requests)
        every, num_arrived = max(num_requests // 200, 1), 0

        def advance() -> None:
            nonlocal num_arrived
            num_arrived += 1
            if num_arrived % every == 0:
                bar.update(task, completed=num_arrived)

        yield advance
        bar.update(task, completed=num_requests)
