"""A step fails, or ctrl-C falls into it: the calls under way end with the error, the memory is whole, life goes on."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from support.scripted_executor import SaboteurExecutor

from octavo import LLM, SamplingParams
from octavo.errors import BackendError, RequestError
from octavo.outputs import CompletionDelta
from octavo.scheduler.output import SchedulerOutput

PROMPTS = [[5 + number] * (3 + 11 * number) for number in range(6)]
PARAMS = [SamplingParams(temperature=0, max_tokens=20, n=1 + number % 3) for number in range(6)]


class FailureError(Exception):
    """Nothing of ours."""


def answers(llm: LLM) -> list[list[list[int]]]:
    return [[sample.token_ids for sample in output.outputs] for output in llm.generate(PROMPTS, PARAMS)]


def answers_twice(llm: LLM) -> None:
    answers(llm)
    answers(llm)


def fail_at(llm: LLM, num_steps: int, where: str, error: BaseException | None = None) -> None:
    """Let one coming step fail, ``before`` or ``after`` the executor has done its work."""
    countdown = iter(range(num_steps, -1, -1))

    def sabotage(scheduled: SchedulerOutput) -> None:
        if next(countdown, None) == 0:
            raise error or FailureError("out of order")

    core = llm.engine.core
    core.executor = SaboteurExecutor(core.executor, **{where: sabotage})


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Programs in the background may start with interrupts ignored; these tests are about interrupts."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture
def pressed(make_llm: Callable[..., LLM]) -> LLM:
    """Chunks, preemptions, forks, copies: a step of this engine has everything in it that can be torn."""
    llm = make_llm(num_blocks=12, max_num_batched_tokens=16, max_num_seqs=4)
    llm.engine.core.scheduler.forecast.fits = lambda *_: True  # type: ignore[method-assign]
    return llm


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_failed_step_fails_the_call_and_leaves_the_engine_usable(pressed: LLM, where: str) -> None:
    """In every step of a run, one after the other, in the same engine: later answers are as they were."""
    llm = pressed
    expected = answers(llm)
    num_steps = llm.engine.core.scheduler.stats.num_steps
    assert llm.engine.core.scheduler.stats.num_preemptions > 0
    for at in range(0, num_steps, 3):
        executor = llm.engine.core.executor
        fail_at(llm, at % num_steps, where)
        with pytest.raises(FailureError, match="out of order"):
            answers_twice(llm)  # from a warm cache there are fewer steps
        llm.engine.core.executor = executor
        llm.engine.core.scheduler.check_integrity()
        assert llm.engine.core.scheduler.manager.block_pool.num_held == 0
        assert not llm.engine.has_unfinished_requests
        assert answers(llm) == expected


def test_logits_that_are_no_numbers(llm: LLM) -> None:
    """A damaged model: the backend refuses to choose; the caller gets its error, not an empty answer."""
    expected = answers(llm)
    model = llm.engine.core.executor.model  # type: ignore[attr-defined]
    compute_logits = model.compute_logits
    model.compute_logits = lambda hidden: np.full_like(compute_logits(hidden), np.nan)
    with pytest.raises(BackendError, match="the largest logit is"):
        llm.generate(["the", "stop"], SamplingParams(temperature=0, max_tokens=4))
    model.compute_logits = compute_logits
    assert answers(llm) == expected


def test_every_open_stream_gets_the_error(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=30)
    streams = [llm.stream([5 + number] * 9, params) for number in range(3)]
    for stream in streams:
        next(stream)
    fail_at(llm, 4, "before")
    with pytest.raises(FailureError):
        llm.generate("the", params)
    for stream in streams:
        received: list[CompletionDelta] = []
        with pytest.raises(FailureError, match="out of order"):
            received.extend(stream)
        assert len(received) >= 4
        assert list(stream) == []
    assert len(llm.generate("the", params)[0].outputs[0].token_ids) == 30


def test_who_waits_goes_on_at_the_engine(make_llm: Callable[..., LLM]) -> None:
    """One step down, requests that had not begun are not concerned; those that ran have ended, all samples of them."""
    llm = make_llm(max_num_seqs=2)
    engine = llm.engine
    engine.add_request("runs", "the", SamplingParams(temperature=0, max_tokens=9, n=3))
    engine.add_request("waits", "stop", SamplingParams(temperature=0, max_tokens=9))
    engine.step()
    fail_at(llm, 0, "after")
    with pytest.raises(FailureError):
        engine.step()
    assert not engine.is_unfinished("runs")
    assert engine.is_unfinished("waits")
    engine.core.scheduler.check_integrity()
    deltas = []
    while engine.has_unfinished_requests:
        deltas += engine.step()
    assert {delta.request_id for delta in deltas} == {"waits"}
    assert len(deltas) == 9


def test_a_copy_that_was_not_made_is_not_trusted(make_llm: Callable[..., LLM]) -> None:
    """Two samples part inside a block; the step that should copy it fails, and so its copy holds nothing."""
    prompt = [5 + index for index in range(12)]
    params = SamplingParams(temperature=0, max_tokens=9, n=2, logprobs=1)
    (expected,) = make_llm().generate(prompt, params)
    llm = make_llm()
    executor = llm.engine.core.executor
    fail_at(llm, 1, "before")
    with pytest.raises(FailureError):
        llm.generate(prompt, params)
    llm.engine.core.executor = executor
    for _ in range(2):
        (output,) = llm.generate(prompt, params)
        assert output.outputs == expected.outputs


def test_an_error_while_prompts_are_taken_in_leaves_none_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = llm.tokenizer.encode

    def encode_or_fail(text: str) -> list[int]:
        if text == "in":
            raise FailureError("no tokenizer")
        return encode(text)

    monkeypatch.setattr(llm.tokenizer, "encode", encode_or_fail)
    with pytest.raises(FailureError):
        llm.generate(["the", "stop", "in", "an"])
    assert not llm.engine.has_unfinished_requests
    with pytest.raises(RequestError):
        llm.generate(["the", "stop", ""])
    assert not llm.engine.has_unfinished_requests


# ---- ctrl-C ----------------------------------------------------------------------------------------------------------


def test_an_interrupt_within_a_step_falls_after_it(llm: LLM) -> None:
    """The executor is in the middle of its work; the step is finished, and then the call ends."""
    expected = answers(llm)
    finished_steps = []

    def interrupt(scheduled: SchedulerOutput) -> None:
        signal.raise_signal(signal.SIGINT)
        finished_steps.append(scheduled.step)

    executor = llm.engine.core.executor
    llm.engine.core.executor = SaboteurExecutor(executor, before=interrupt)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("the", SamplingParams(max_tokens=9))
    assert len(finished_steps) == 1
    llm.engine.core.executor = executor
    assert not llm.engine.has_unfinished_requests
    assert answers(llm) == expected


def test_interrupts_at_any_moment(pressed: LLM) -> None:
    """A timer interrupts at random; whatever it hits, the accounts balance and the next call answers as ever."""
    llm, num_interrupts = pressed, 0
    expected = answers(llm)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    previous = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        for number in range(60):
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0007 * (number % 30))
            try:
                answers(llm)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                num_interrupts += 1
            assert not llm.engine.has_unfinished_requests
            llm.engine.core.scheduler.check_integrity()
            assert llm.engine.core.scheduler.manager.block_pool.num_held == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert num_interrupts > 10
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert answers(llm) == expected


def test_an_interrupted_call_takes_nothing_from_an_open_stream(llm: LLM) -> None:
    params = SamplingParams(temperature=1, seed=3, max_tokens=30, ignore_eos=True)
    expected = [delta.token_ids for delta in llm.stream("the", params)]
    stream = llm.stream("the", params)
    found = [next(stream).token_ids]
    executor = llm.engine.core.executor
    llm.engine.core.executor = SaboteurExecutor(executor, after=lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        llm.generate("stop", params)
    llm.engine.core.executor = executor
    assert found + [delta.token_ids for delta in stream] == expected


def test_other_threads_compute_without_signals(llm: LLM) -> None:
    expected = answers(llm)
    found: list[list[list[list[int]]]] = []
    thread = threading.Thread(target=lambda: found.append(answers(llm)))
    thread.start()
    thread.join()
    assert found == [expected]


def test_deferring_costs_little(llm: LLM) -> None:
    from octavo.engine.interrupts import deferred_interrupts

    began = time.process_time()
    for _ in range(1000):
        with deferred_interrupts():
            pass
    assert (time.process_time() - began) / 1000 < 100e-6
