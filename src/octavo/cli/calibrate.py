"""``octavo simulate --calibrate``: how long the steps of the native engine take on this machine."""

from __future__ import annotations

import os
import platform
import random
import re
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.core import EngineCore
    from octavo.executor.interface import Executor, StepHandle
    from octavo.scheduler.output import SchedulerOutput
    from octavo.simulator.calibration import MeasuredProfile, MeasuredStep

MAX_MODEL_LEN = 2048
MAX_BATCHED_TOKENS = 1024
MAX_NUM_SEQS = 64
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
NUM_ROUNDS = 3
"""Each size comes up in several rounds, so that a disturbance of the machine does not fall on one size alone."""
NUM_CHECK_REQUESTS = 40


class TimingExecutor:
    """Runs steps and notes how long each took. Attribute ``steps``: what was measured."""

    def __init__(self, executor: Executor) -> None:
        self.steps: list[MeasuredStep] = []
        self._executor = executor

    def submit(self, scheduled: SchedulerOutput) -> StepHandle:
        """Run a step to its end."""
        from octavo.simulator.calibration import MeasuredStep

        start_s = time.perf_counter()
        handle = self._executor.submit(scheduled)
        handle.result()
        self.steps.append(MeasuredStep.of(scheduled, time.perf_counter() - start_s))
        return handle


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured: the profile, the steps that it was fitted to, and those of another run."""

    profile: MeasuredProfile
    fitted: list[MeasuredStep]
    checked: list[MeasuredStep]


def calibrate(model: str, path: Path) -> int:
    """Measure, fit, check on a run that was not fitted, save."""
    from octavo.simulator.calibration import median_error

    measured = measure(model, NUM_ROUNDS)
    profile, cost = measured.profile, measured.profile.cost
    profile.save(path)
    print(f"{len(measured.fitted)} steps measured and fitted: median error {median_error(cost, measured.fitted):.1%}")
    measured_ms = 1000 * statistics.median(step.seconds for step in measured.checked)
    print(
        f"{len(measured.checked)} steps of another run, {measured_ms:.1f} ms in the median: "
        f"median error {profile.median_error:.1%}"
    )
    for knot, seconds in zip(cost.knots, cost.knot_s, strict=True):
        print(f"  {knot:5} tokens  {1000 * seconds:8.2f} ms")
    print(f"  and {1e6 * cost.sample_s:.1f} µs per sampled token, {1e9 * cost.context_token_s:.1f} ns per token of a")
    print(f"  decode's context, {1e9 * cost.pair_s:.2f} ns per (query, key) pair of a prefill")
    print(f"saved as {path}")
    return 0


def this_cpu(model: str) -> MeasuredProfile:
    """The profile of this machine with a model, measured once and kept in Octavo's cache folder."""
    from octavo.simulator.calibration import MeasuredProfile
    from octavo.weights.default_model import cache_folder

    path = cache_folder() / "calibrations" / (re.sub(r"[^A-Za-z0-9.-]+", "_", model) + ".json")
    if path.is_file():
        profile = MeasuredProfile.load(path)
        if profile.machine == this_machine():
            _say(f"cpu: steps of {model} as measured before ({path}; delete it to measure anew)")
            return profile
    _say(f"cpu: measuring steps of {model} on {this_machine()}; a quiet machine gives better figures")
    profile = measure(model, num_rounds=1).profile
    path.parent.mkdir(parents=True, exist_ok=True)
    profile.save(path)
    _say(f"cpu: median error {profile.median_error:.1%} on steps that were not fitted; kept in {path}")
    return profile


def this_machine() -> str:
    """The processor and how many cores of it we may use."""
    return f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def measure(model: str, num_rounds: int) -> Calibration:
    """Run the native engine through batches of many sizes, fit a cost model, and check it on a mixture of requests."""
    from octavo.cli.simulate import shape_of
    from octavo.config import EngineConfig
    from octavo.engine.build import build_engine
    from octavo.simulator.calibration import MeasuredProfile, fit, median_error
    from octavo.weights.loader import open_checkpoint
    from octavo.weights.sources import resolve_model

    config = EngineConfig.from_keywords(
        model,
        backend="native",
        max_num_batched_tokens=MAX_BATCHED_TOKENS,
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=MAX_MODEL_LEN,
        num_blocks=MAX_NUM_SEQS * 1024 // 16,
        enable_prefix_caching=False,
    )
    built = build_engine(config)
    core, vocab_size = built.engine.core, built.model_config.vocab_size
    core.executor = timing = TimingExecutor(core.executor)
    draw = random.Random(0)
    _run_batches(core, vocab_size, draw, timing, num_rounds)
    fitted = list(timing.steps)
    timing.steps.clear()
    _run_mixture(core, vocab_size, draw)
    checked = list(timing.steps)
    cost = fit(fitted)
    checkpoint = open_checkpoint(resolve_model(model))
    shape = shape_of(checkpoint.config, sum(checkpoint.bytes_by_type.values()))
    memory_bytes = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    profile = MeasuredProfile(this_machine(), memory_bytes, shape, cost, median_error(cost, checked))
    return Calibration(profile, fitted, checked)


def _run_batches(
    core: EngineCore, vocab_size: int, draw: random.Random, timing: TimingExecutor, num_rounds: int
) -> None:
    """Decodes of each batch size at several context lengths, prefills of all lengths; the very first ones warm up."""
    _add(core, "warm", vocab_size, draw, 64, 8)
    _run(core)
    timing.steps.clear()
    for round_ in range(num_rounds):
        for size in BATCH_SIZES:
            _tell(f"round {round_ + 1} of {num_rounds}, {size} at once")
            length = draw.choice((16, 64, 256)) if size > 8 else draw.choice((16, 256, 1024))
            for number in range(size):
                _add(core, f"{round_}.{size}.{number}", vocab_size, draw, length, 12)
            _run(core)
        for number, length in enumerate((1, 3, 6, 12, 24, 48, 96, 190, 380, 760, 1500)):
            _add(core, f"{round_}.p{number}", vocab_size, draw, length, 1)
            _run(core)


def _run_mixture(core: EngineCore, vocab_size: int, draw: random.Random) -> None:
    """Requests of random lengths that come while others run: what the fit has to stand up to."""
    _tell("checking")
    for number in range(NUM_CHECK_REQUESTS):
        prompt = min(int(draw.lognormvariate(5, 1)) + 1, 1500)
        _add(core, f"c{number}", vocab_size, draw, prompt, draw.randint(1, 60))
        for _ in range(draw.randint(0, 12)):
            if core.has_unfinished_requests:
                core.step()
    _run(core)
    _tell("")


def _add(core: EngineCore, name: str, vocab_size: int, draw: random.Random, num_prompt: int, num_output: int) -> None:
    from octavo.request import Request
    from octavo.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
    core.add_request(Request(name, draw.choices(range(vocab_size), k=num_prompt), params))


def _run(core: EngineCore) -> None:
    while core.has_unfinished_requests:
        core.step()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _tell(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[Kmeasuring: {what}" if what else "\r\033[K", end="", file=sys.stderr, flush=True)
