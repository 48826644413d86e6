"""Streams: their deltas, several at once, closing them, and requests that are ended from outside."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import RequestError
from octavo.outputs import CompletionDelta

ENDLESS = SamplingParams(temperature=1, seed=1, max_tokens=None, ignore_eos=True)


def num_held(llm: LLM) -> int:
    llm.engine.core.scheduler.check_integrity()
    return llm.engine.core.scheduler.manager.block_pool.num_held


@pytest.mark.parametrize("stop", [(), ("a", "🙂", "th", "e.")])
def test_deltas_join_to_the_text(llm: LLM, stop: tuple[str, ...]) -> None:
    """At a temperature at which characters come in pieces, and most pieces never become characters."""
    for seed in range(40):
        params = SamplingParams(temperature=2, seed=seed, max_tokens=30, logprobs=1, stop=stop)
        deltas = list(llm.stream("th", params))
        output = deltas[-1].output
        assert output is not None
        assert [delta.output for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        (sample,) = output.outputs
        joined = "".join(delta.text for delta in deltas)
        assert joined == sample.text
        assert joined.encode().decode() == joined
        assert list(itertools.chain(*(delta.token_ids for delta in deltas))) == sample.token_ids
        assert list(itertools.chain(*(delta.logprobs or () for delta in deltas))) == sample.logprobs
        assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [sample.finish_reason]
        assert deltas[-1].stop_reason == sample.stop_reason
        assert output == generated(llm, params, output.request_id, output.metrics, output.num_cached_tokens)
        if sample.finish_reason == "length":
            assert joined == llm.tokenizer.decode(sample.token_ids)


def generated(llm: LLM, params: SamplingParams, request_id: str, metrics: object, num_cached_tokens: int) -> object:
    """The same request through ``generate``, with what may differ made equal."""
    (output,) = llm.generate("th", params)
    output.request_id, output.num_cached_tokens = request_id, num_cached_tokens
    output.metrics = metrics  # type: ignore[assignment]
    return output


def test_deltas_of_several_samples(llm: LLM) -> None:
    params = SamplingParams(temperature=1, seed=4, max_tokens=30, n=3, stop="a")
    texts = ["", "", ""]
    deltas = list(llm.stream("the", params))
    for delta in deltas:
        texts[delta.index] += delta.text
    assert deltas[-1].output is not None
    assert [sample.text for sample in deltas[-1].output.outputs] == texts


def test_a_stream_is_refused_when_it_is_read(llm: LLM) -> None:
    stream = llm.stream("")
    with pytest.raises(RequestError, match="the prompt is empty"):
        next(stream)


def test_streams_side_by_side_lose_nothing(llm: LLM) -> None:
    prompts = ["the", "stop", "abc", "in"]
    each = [SamplingParams(temperature=1, seed=seed, max_tokens=10 * seed + 5) for seed in range(4)]
    alone = ["".join(delta.text for delta in llm.stream(*request)) for request in zip(prompts, each, strict=True)]
    streams = [llm.stream(*request) for request in zip(prompts, each, strict=True)]
    together = ["", "", "", ""]
    for deltas in itertools.zip_longest(*streams):
        for number, delta in enumerate(deltas):
            together[number] += "" if delta is None else delta.text
    assert together == alone


def test_a_call_while_a_stream_is_open_takes_nothing_from_it(llm: LLM) -> None:
    params = SamplingParams(temperature=1, seed=9, max_tokens=20)
    expected = [delta.text for delta in llm.stream("the", params)]
    stream = llm.stream("the", params)
    deltas = [next(stream)]
    (output,) = llm.generate("stop", SamplingParams(temperature=0, max_tokens=40))
    assert len(output.outputs[0].token_ids) == 40
    deltas += stream
    assert [delta.text for delta in deltas] == expected


@pytest.mark.parametrize("num_read", [0, 1, 5])
def test_closing_a_stream_frees_its_blocks_and_keeps_its_work(llm: LLM, num_read: int) -> None:
    prompt = [5 + index for index in range(40)]
    stream = llm.stream(prompt, ENDLESS)
    for _ in range(num_read):
        next(stream)
    assert (num_held(llm) > 0) == (num_read > 0)
    stream.close()  # type: ignore[attr-defined]
    assert num_held(llm) == 0
    assert not llm.engine.has_unfinished_requests
    (output,) = llm.generate(prompt, SamplingParams(max_tokens=1))
    assert output.num_cached_tokens == (39 if num_read else 0)


def test_leaving_a_loop_frees_the_blocks(llm: LLM) -> None:
    for _ in llm.stream("the", ENDLESS):
        break
    assert num_held(llm) == 0


def test_cancel_with_the_wrong_scope(llm: LLM) -> None:
    """Cancelling others, 200 times, leaves a stream as it was."""
    params = SamplingParams(temperature=1, seed=2, max_tokens=200, ignore_eos=True)
    expected = [delta.token_ids for delta in llm.stream("the", params)]
    stream, found = llm.stream("the", params), []
    for number in range(200):
        llm.engine.add_request(f"other{number}", [7] * (1 + number % 50), ENDLESS)
        found.append(next(stream).token_ids)
        llm.engine.abort_request(f"other{number}")
    assert found == expected


def test_a_request_ended_behind_a_streams_back_ends_the_stream(llm: LLM) -> None:
    stream = llm.stream("the", ENDLESS)
    first = next(stream)
    llm.engine.abort_request(first.request_id)
    assert list(stream) == []


# ---- aborts and deadlines, at the engine ---------------------------------------------------------------------------


def run(llm: LLM, num_steps: int = 10_000) -> Iterator[CompletionDelta]:
    for _ in range(num_steps):
        if not llm.engine.has_unfinished_requests:
            return
        yield from llm.engine.step()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 4, 10])
def test_cancel_lost_between_states(make_llm: Callable[..., LLM], n: int, num_steps: int) -> None:
    """Abort in the queue, between two chunks of the prompt, at its end, in decode: all is free at once."""
    llm = make_llm(max_num_batched_tokens=16, max_num_seqs=4)
    llm.engine.add_request("other", [9] * 5, ENDLESS)
    params = SamplingParams(temperature=1, seed=1, max_tokens=100, n=n, ignore_eos=True)
    llm.engine.add_request("gone", [5] * 40, params)
    seen = [delta for delta in run(llm, num_steps) if delta.request_id == "gone"]
    last = llm.engine.abort_request("gone")
    assert [delta.index for delta in last] == list(range(n))
    assert {delta.finish_reason for delta in last} == {"abort"}
    output = last[-1].output
    assert output is not None
    for sample in output.outputs:
        assert sample.finish_reason == "abort"
        assert len(sample.token_ids) == sum(delta.index == sample.index for delta in seen)
        assert sample.text == "".join(delta.text for delta in [*seen, *last] if delta.index == sample.index)
    assert llm.engine.abort_request("gone") == []
    assert not any(delta.request_id == "gone" for delta in run(llm, 5))
    llm.engine.abort_request("other")
    assert num_held(llm) == 0


def test_abort_of_one_who_was_preempted(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(num_blocks=8)
    llm.engine.core.scheduler.forecast.fits = lambda *_: True  # type: ignore[method-assign]
    for number in range(4):
        llm.engine.add_request(str(number), [5 + number] * 7, SamplingParams(temperature=0, max_tokens=50))
    while not llm.engine.core.scheduler.stats.num_preemptions:
        llm.engine.step()
    (victim, *_) = llm.engine.core.scheduler.waiting
    assert victim.num_output_tokens > 0
    (delta,) = llm.engine.abort_request(victim.request_id)
    assert delta.output is not None
    assert len(delta.output.outputs[0].token_ids) == victim.num_output_tokens
    ended = [delta.output for delta in run(llm) if delta.output is not None]
    assert sorted(output.request_id for output in ended) == sorted({"0", "1", "2", "3"} - {victim.request_id})
    assert all(len(output.outputs[0].token_ids) == 50 for output in ended)


def test_unknown_ids_are_ignored_and_used_ones_refused(llm: LLM) -> None:
    assert llm.engine.abort_request("nobody") == []
    llm.engine.add_request("a", "the", ENDLESS)
    with pytest.raises(RequestError, match="request id 'a' is in use; choose another"):
        llm.engine.add_request("a", "the", ENDLESS)
    llm.engine.abort_request("a")
    llm.engine.add_request("a", "the", SamplingParams(max_tokens=1))
    assert [delta.finish_reason for delta in run(llm)] == ["length"]


def let_time_pass(llm: LLM, seconds: float) -> None:
    scheduler = llm.engine.core.scheduler
    clock = scheduler._clock
    scheduler._clock = lambda: clock() + seconds


def test_a_call_may_have_a_deadline(make_llm: Callable[..., LLM]) -> None:
    (output,) = make_llm().generate("the", ENDLESS, deadline_s=0.02, tenant="a")
    assert output.outputs[0].finish_reason == "timeout"
    with pytest.raises(TypeError, match="unexpected keyword argument 'deadline'"):
        make_llm().generate("the", ENDLESS, deadline=1)  # type: ignore[call-arg]


def test_a_deadline_ends_a_request_with_what_it_has(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_num_seqs=1)
    llm.engine.add_request("runs", "the", ENDLESS, deadline_s=500)
    llm.engine.add_request("waits", "the", ENDLESS, deadline_s=600)
    llm.engine.add_request("stays", [5] * 9, SamplingParams(temperature=0, max_tokens=3))
    deltas = list(run(llm, 7))
    let_time_pass(llm, 1000)
    deltas += run(llm)
    outputs = {delta.request_id: delta.output for delta in deltas if delta.output is not None}
    runs, waits, stays = outputs["runs"], outputs["waits"], outputs["stays"]
    assert runs.outputs[0].finish_reason == waits.outputs[0].finish_reason == "timeout"
    assert len(runs.outputs[0].token_ids) == 7
    assert runs.outputs[0].text == llm.tokenizer.decode(runs.outputs[0].token_ids)
    assert waits.outputs[0].token_ids == []
    assert waits.metrics.ttft_s == 0.0
    assert len(stays.outputs[0].token_ids) == 3
    assert num_held(llm) == 0


def test_a_deadline_in_the_past_and_one_that_is_no_number(llm: LLM) -> None:
    llm.engine.add_request("late", "the", ENDLESS, deadline_s=-1.0)
    (delta,) = run(llm)
    assert (delta.finish_reason, delta.token_ids) == ("timeout", [])
    with pytest.raises(RequestError, match="the deadline must be a number of seconds, not nan"):
        llm.engine.add_request("never", "the", ENDLESS, deadline_s=float("nan"))


def test_the_queue_has_a_limit(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_num_seqs=1, max_waiting_requests=2)
    with pytest.raises(RequestError, match=r"prompt 2: 2 requests wait already \(max_waiting_requests\)"):
        llm.generate(["the"] * 5, SamplingParams(max_tokens=1))
    assert not llm.engine.has_unfinished_requests
    assert len(llm.generate(["the"] * 2, SamplingParams(max_tokens=1))) == 2


def test_samples_of_a_request_that_runs_do_not_wait_in_the_queue(make_llm: Callable[..., LLM]) -> None:
    """``max_queue_time_s`` is for requests that nobody has begun; a long prompt of several samples is begun once."""
    llm = make_llm(max_num_batched_tokens=2, max_num_seqs=2, max_queue_time_s=500)
    llm.engine.add_request("runs", [5] * 40, SamplingParams(n=3, max_tokens=2, temperature=0))
    llm.engine.add_request("waits", [5] * 40, SamplingParams(max_tokens=2, temperature=0))
    deltas = list(run(llm, 3))
    let_time_pass(llm, 1000)
    deltas += run(llm)
    outputs = {delta.request_id: delta.output for delta in deltas if delta.output is not None}
    assert [sample.finish_reason for sample in outputs["runs"].outputs] == ["length"] * 3
    assert [sample.finish_reason for sample in outputs["waits"].outputs] == ["timeout"]
