"""The simulated engine decides as the real one: same requests, same step times, same batches and block tables."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from octavo.backends.registry import create_backend
from octavo.config import BackendConfig, SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.executor.interface import Executor, StepHandle
from octavo.executor.model_executor import ModelExecutor
from octavo.kvcache.manager import PagedKVCacheManager
from octavo.models.registry import build_model
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.forecast import MemoryForecast
from octavo.scheduler.output import SchedulerOutput
from octavo.scheduler.scheduler import Scheduler
from octavo.simulator.clock import VirtualClock
from octavo.simulator.simulated_executor import SimulatedExecutor
from octavo.weights.loader import open_checkpoint

MODEL = Path(__file__).parents[1] / "golden" / "models" / "llama"
NUM_BLOCKS, BLOCK_SIZE, MAX_NUM_SEQS, MAX_MODEL_LEN = 24, 16, 6, 200
SCHEDULER = SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=MAX_NUM_SEQS)


class MeasuringExecutor:
    """Runs the real executor and lets the time that a step took pass on the virtual clock."""

    def __init__(self, executor: Executor, clock: VirtualClock) -> None:
        self.step_s: list[float] = []
        self._executor = executor
        self._clock = clock

    def submit(self, scheduled: SchedulerOutput) -> StepHandle:
        start_s = time.perf_counter()
        handle = self._executor.submit(scheduled)
        handle.result()
        self.step_s.append(time.perf_counter() - start_s)
        self._clock.advance(self.step_s[-1])
        return handle


class MeasuredCost:
    """A cost model that knows the time of each step in turn."""

    context_token_s = 0.0

    def __init__(self, step_s: list[float]) -> None:
        self._step_s = iter(step_s)

    def dense_s(self, num_tokens: int, num_samples: int) -> float:
        return next(self._step_s)

    def chunk_attention_s(self, start: int, num_tokens: int) -> float:
        return 0.0


def real_executor() -> ModelExecutor:
    checkpoint, backend = open_checkpoint(MODEL), create_backend(BackendConfig(backend="native"))
    model = build_model(checkpoint.config, checkpoint.tensors, backend, MAX_MODEL_LEN)
    cache = backend.allocate_kv_cache(model.kv_cache_spec(NUM_BLOCKS, BLOCK_SIZE, backend.default_kv_cache_dtype))
    return ModelExecutor(
        model, backend, cache, block_size=BLOCK_SIZE, max_num_seqs=MAX_NUM_SEQS, max_model_len=MAX_MODEL_LEN
    )


def make_requests(seed: int) -> list[Request]:
    """Prompts that share one of three beginnings and then differ from the first token on. Arrivals are counted in
    steps of a millisecond, so that who meets whom depends on the measured times."""
    draw = random.Random(seed)
    heads = [draw.choices(range(128), k=40) for _ in range(3)]
    requests, now_s = [], 0.0
    for number in range(40):
        now_s += draw.choice((0.0, 0.001, 0.004))
        prompt = [*draw.choice(heads), number, *draw.choices(range(128), k=draw.randint(0, 80))]
        params = SamplingParams(temperature=0.0, max_tokens=draw.randint(1, 60), ignore_eos=True)
        requests.append(Request(f"r{number}", prompt, params, seed=1000 + number, arrival_s=now_s))
    return requests


def decisions(core: EngineCore, clock: VirtualClock, requests: list[Request]) -> list[tuple[Any, ...]]:
    """Serve the requests as they arrive; what was decided in each step, and the block tables after it."""
    found: list[tuple[Any, ...]] = []
    waiting = list(reversed(requests))
    while waiting or core.has_unfinished_requests:
        if not core.has_unfinished_requests:
            clock.skip_to(waiting[-1].arrival_s)
        while waiting and waiting[-1].arrival_s <= clock.now_s:
            core.add_request(waiting.pop())
        scheduler = core.scheduler
        scheduled = scheduler.schedule()
        batch = (
            clock.now_s,
            [request.request_id for request in scheduled.decodes],
            [(chunk.request.request_id, chunk.start, chunk.num_tokens, chunk.samples) for chunk in scheduled.chunks],
            [(each.request.request_id, each.slot, each.num_computed_tokens) for each in scheduled.admissions],
            [(update.slot, update.index, update.block_ids) for update in scheduled.table_updates],
            scheduled.block_copies,
            [request.request_id for request in scheduled.preempted],
        )
        tables = {name: list(scheduler.manager.get_block_table(name)) for name in sorted(scheduler.running)}
        scheduler.update(scheduled, core.executor.submit(scheduled).result())
        found.append((*batch, tables))
    return found


def make_core(executor: Executor, clock: VirtualClock) -> EngineCore:
    manager = PagedKVCacheManager(NUM_BLOCKS, BLOCK_SIZE)
    return EngineCore(Scheduler(SCHEDULER, manager, MAX_MODEL_LEN, clock), executor)


@pytest.mark.parametrize("preempts", [False, True])
def test_step_by_step_the_same(monkeypatch: pytest.MonkeyPatch, preempts: bool) -> None:
    if preempts:  # admit whatever fits now
        monkeypatch.setattr(MemoryForecast, "fits", lambda *_: True)
    real_clock, simulated_clock = VirtualClock(), VirtualClock()
    measuring = MeasuringExecutor(real_executor(), real_clock)
    real = decisions(make_core(measuring, real_clock), real_clock, make_requests(5))
    simulating = SimulatedExecutor(MeasuredCost(measuring.step_s), simulated_clock)
    simulated = decisions(make_core(simulating, simulated_clock), simulated_clock, make_requests(5))
    for number, (ours, theirs) in enumerate(zip(simulated, real, strict=True)):
        assert ours == theirs, f"step {number}"
    assert len(real) > 100
    assert any(copies for *_, copies, _, _ in real)
    assert any(preempted for *_, preempted, _ in real) or not preempts
