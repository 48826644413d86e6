"""What ``LLM`` gives back: results, text, log probabilities, seeds. What the tiny model says is random, but fixed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.scripted_executor import ScriptedExecutor
from support.tiny_llm import EOS_ID, MARKER, MARKER_ID, NUM_TOKENS

from octavo import LLM, SamplingParams
from octavo.errors import ChatTemplateError, ConfigError, RequestError, RequestTooLargeError
from octavo.outputs import CompletionOutput

HOT = SamplingParams(temperature=1, seed=1, max_tokens=40)
GREEDY = SamplingParams(temperature=0, max_tokens=8)


def one(llm: LLM, prompt: str | list[int], params: SamplingParams) -> CompletionOutput:
    (output,) = llm.generate(prompt, params)
    (sample,) = output.outputs
    return sample


# ---- results ---------------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    """The first prompt takes longest."""
    prompts = ["the " * count for count in (30, 3, 1, 12)]
    each = [SamplingParams(temperature=0, max_tokens=count) for count in (30, 2, 5, 1)]
    outputs = llm.generate(prompts, each)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [30, 2, 5, 1]
    assert all(output.finished for output in outputs)
    assert [output.outputs[0].finish_reason for output in outputs] == ["length"] * 4
    assert len({output.request_id for output in outputs}) == 4


def test_one_prompt_text_or_token_ids(llm: LLM) -> None:
    (from_text,) = llm.generate("the stop", GREEDY)
    assert from_text.prompt_token_ids == llm.tokenizer.encode("the stop")
    for same in (from_text.prompt_token_ids, tuple(from_text.prompt_token_ids), [from_text.prompt_token_ids]):
        (from_ids,) = llm.generate(same, GREEDY)
        assert from_ids.prompt is None
        assert from_ids.outputs[0].token_ids == from_text.outputs[0].token_ids


def test_no_prompts_no_results(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_default_parameters_are_used_when_none_are_given(llm: LLM) -> None:
    llm.engine.core.executor = ScriptedExecutor([30] * 20)
    (output,) = llm.generate("the")
    assert output.outputs[0].token_ids == [30] * 16


def test_chat_renders_the_template_and_takes_one_conversation_or_many(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "stop"}]
    (output,) = llm.chat(conversation, GREEDY)
    assert output.prompt == "user: stop\nassistant: "
    assert [other.outputs[0].text for other in llm.chat([conversation] * 2, GREEDY)] == [output.outputs[0].text] * 2


def test_a_conversation_that_the_template_refuses_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises((ChatTemplateError, RequestError)):
        llm.chat([{"role": "user"}])  # type: ignore[list-item]


def test_samples_of_one_prompt(llm: LLM) -> None:
    (output,) = llm.generate("the", SamplingParams(n=3, temperature=1, seed=7, max_tokens=10))
    assert [sample.index for sample in output.outputs] == [0, 1, 2]
    for index, sample in enumerate(output.outputs):
        alone = one(llm, "the", SamplingParams(temperature=1, seed=7 + index, max_tokens=10))
        assert sample == replace(alone, index=index)


def test_more_samples_than_may_run_at_once(make_llm: Callable[..., LLM]) -> None:
    params = SamplingParams(n=8, temperature=1, seed=7, max_tokens=10)
    (few_slots,) = make_llm(max_num_seqs=3).generate("the stop", params)
    (many_slots,) = make_llm().generate("the stop", params)
    assert few_slots.outputs == many_slots.outputs


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "problem"),
    [
        ("", "the prompt is empty"),
        ([[]], "the prompt is empty"),
        (["the", ""], "prompt 1: the prompt is empty"),
        (None, "must be a string or a list of token ids, not NoneType"),
        (7, "must be a string or a list of token ids, not int"),
        (b"the", "must be a string or a list of token ids, not bytes"),
        (["the", None], "prompt 1: a prompt must be a string or a list of token ids, not NoneType"),
        ([True, 3], "prompt token 0 must be an integer, not True"),
        ([[3, "4"]], "prompt token 1 must be an integer, not '4'"),
        ([[3, 4.0]], "prompt token 1 must be an integer, not 4.0"),
        ([3, NUM_TOKENS], f"prompt token 1 is {NUM_TOKENS}; ids go from 0 to {NUM_TOKENS - 1}"),
        ([[3], [-1]], "prompt 1: prompt token 0 is -1"),
        ("half \ud800", "half of a surrogate pair"),
    ],
)
def test_what_is_no_prompt(llm: LLM, prompts: object, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        llm.generate(prompts)  # type: ignore[arg-type]


@pytest.mark.parametrize("params", [{}, 5, "max_tokens", [None], [{}]])
def test_what_are_no_sampling_parameters(llm: LLM, params: object) -> None:
    with pytest.raises(RequestError, match=r"sampling parameters (must be|for)"):
        llm.generate(["the"], params)  # type: ignore[arg-type]


@pytest.mark.parametrize("params", [{}, 5, [GREEDY, GREEDY]])
def test_what_are_no_parameters_of_a_stream(llm: LLM, params: object) -> None:
    with pytest.raises(RequestError, match=r"sampling parameters (must be|for)"):
        next(llm.stream("the", params))  # type: ignore[arg-type]


def test_beam_search_refuses_what_has_no_answer(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(max_model_len=20)
    with pytest.raises(RequestError, match="max_tokens must be at least 1, not 0"):
        llm.beam_search("the", beam_width=2, max_tokens=0)
    with pytest.raises(RequestError, match="beam_width must be between 1 and 25, not 26"):
        llm.beam_search("the", beam_width=26, max_tokens=1)
    with pytest.raises(RequestTooLargeError, match="the prompt has 20 tokens and the model's limit is 20"):
        llm.beam_search([5] * 20, beam_width=2, max_tokens=4)
    assert [len(beam.token_ids) for beam in llm.beam_search([5] * 19, beam_width=2, max_tokens=4)] == [1, 1]


def test_as_many_parameters_as_prompts(llm: LLM) -> None:
    with pytest.raises(RequestError, match="3 sampling parameters for 2 prompts; give one for all or one each"):
        llm.generate(["the", "the"], [GREEDY] * 3)


@pytest.mark.parametrize(
    ("keywords", "problem"),
    [
        ({"stop_token_ids": [NUM_TOKENS]}, f"stop_token_ids has token {NUM_TOKENS}; ids go from 0 to {NUM_TOKENS - 1}"),
        ({"logit_bias": {NUM_TOKENS: 1.0}}, f"logit_bias has token {NUM_TOKENS}; ids go from 0 to {NUM_TOKENS - 1}"),
    ],
)
def test_token_ids_that_the_model_does_not_have(llm: LLM, keywords: dict[str, object], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        llm.generate("the", SamplingParams(**keywords))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keywords", "problem"),
    [
        ({"priority": "high"}, "priority must be an integer, not 'high'"),
        ({"priority": True}, "priority must be an integer, not True"),
        ({"cache_salt": ["a"]}, r"cache_salt must be strings"),
    ],
)
def test_wrong_types_are_refused_before_they_reach_the_scheduler(
    llm: LLM, keywords: dict[str, object], problem: str
) -> None:
    with pytest.raises(RequestError, match=problem):
        llm.generate("the", GREEDY, **keywords)  # type: ignore[arg-type]


def test_silent_truncation(make_llm: Callable[..., LLM]) -> None:
    """A prompt over the model's length is refused, with the numbers; nobody else is touched."""
    llm = make_llm(max_model_len=100)
    stream = llm.stream("the", SamplingParams(temperature=0, max_tokens=20))
    before = [next(stream) for _ in range(3)]
    with pytest.raises(RequestTooLargeError, match=r"prompt 1: the prompt has 130 tokens and the model's limit is 100"):
        llm.generate([[5] * 10, [5] * 130, [5] * 10], GREEDY)
    assert len(before) + len(list(stream)) == 20
    assert len(one(llm, [5] * 99, SamplingParams(max_tokens=10)).token_ids) == 1


def test_error_swallowed_as_empty_success(make_llm: Callable[..., LLM]) -> None:
    """A prompt over the pool raises; its message says how much there is."""
    llm = make_llm(num_blocks=4)
    with pytest.raises(RequestTooLargeError, match=r"the KV cache holds 32 \(4 blocks of 8\); shorten the prompt by 9"):
        llm.generate([5] * 40, GREEDY)
    assert one(llm, [5] * 31, GREEDY).finish_reason == "length"


def test_an_unknown_keyword_is_an_error(tiny: str, llm: LLM) -> None:
    with pytest.raises(ConfigError, match=r"unknown keyword gpu_memory_utilization; known: .*num_blocks"):
        LLM(tiny, gpu_memory_utilization=0.9)
    with pytest.raises(TypeError, match="best_of"):
        llm.generate("the", best_of=2)  # type: ignore[call-arg]


# ---- where outputs end -----------------------------------------------------------------------------------------------


def test_max_tokens_none_fills_the_model(llm: LLM) -> None:
    sample = one(llm, [5] * 20, SamplingParams(max_tokens=None, temperature=0, ignore_eos=True))
    assert len(sample.token_ids) == llm.max_model_len - 20
    assert sample.finish_reason == "length"


def test_a_lone_request_that_outgrows_the_pool_ends_with_length(make_llm: Callable[..., LLM]) -> None:
    sample = one(make_llm(num_blocks=4), [5] * 20, SamplingParams(max_tokens=None, temperature=0, ignore_eos=True))
    assert (len(sample.token_ids), sample.finish_reason) == (12, "length")


SCRIPT = "abc thé 🙂🎈 stopping €漢字 the stST"
"""Its characters need one to four tokens, and its words have tokens of their own."""


def test_stop_strings_leave_nothing_of_themselves(llm: LLM) -> None:
    """Every string of an output, as a stop string: it spans tokens, and begins and ends inside of them."""
    script = llm.tokenizer.encode(SCRIPT)
    assert any("\ufffd" in llm.tokenizer.decode([token_id]) for token_id in script)
    llm.engine.core.executor = ScriptedExecutor(script)
    pairs = itertools.combinations(range(len(SCRIPT) + 1), 2)
    stops = sorted({SCRIPT[start:end] for start, end in pairs if end - start <= 8})
    params = [SamplingParams(max_tokens=len(script), stop=[stop, "never"]) for stop in stops]
    for stop, output in zip(stops, llm.generate(["the"] * len(stops), params), strict=True):
        (sample,) = output.outputs
        assert sample.text == SCRIPT[: SCRIPT.index(stop)]
        assert (sample.finish_reason, sample.stop_reason) == ("stop", stop)
        assert sample.token_ids == script[: len(sample.token_ids)]
        assert stop in llm.tokenizer.decode(sample.token_ids)
        assert stop not in llm.tokenizer.decode(sample.token_ids[:-1])


def test_stop_strings_can_be_part_of_the_output(llm: LLM) -> None:
    free = one(llm, "the", HOT)
    stop = free.text[5:8]
    sample = one(llm, "the", replace(HOT, stop=stop, include_stop_str_in_output=True))
    assert sample.text == free.text[: free.text.index(stop) + len(stop)]
    assert sample.stop_reason == stop


def test_what_only_began_a_stop_string_is_output_in_the_end(llm: LLM) -> None:
    free = one(llm, "the", HOT)
    sample = one(llm, "the", replace(HOT, stop=free.text[-3:] + "never"))
    assert (sample.text, sample.finish_reason) == (free.text, "length")


def test_stop_token_ids(llm: LLM) -> None:
    free = one(llm, "the", HOT)
    stop_id = free.token_ids[6]
    at = free.token_ids.index(stop_id)
    sample = one(llm, "the", replace(HOT, stop_token_ids=[stop_id]))
    assert sample.token_ids == free.token_ids[: at + 1]
    assert sample.text == llm.tokenizer.decode(free.token_ids[:at])
    assert (sample.finish_reason, sample.stop_reason) == ("stop", stop_id)
    kept = replace(HOT, stop_token_ids=[stop_id], include_stop_str_in_output=True)
    assert one(llm, "the", kept).text == llm.tokenizer.decode(free.token_ids[: at + 1])


def test_the_models_own_end_of_sequence(llm: LLM) -> None:
    to_end = {EOS_ID: 100.0}
    sample = one(llm, "the", SamplingParams(temperature=0, max_tokens=5, logit_bias=to_end))
    assert (sample.token_ids, sample.text) == ([EOS_ID], "")
    assert (sample.finish_reason, sample.stop_reason) == ("stop", None)
    ignored = one(llm, "the", SamplingParams(temperature=0, max_tokens=5, logit_bias=to_end, ignore_eos=True))
    assert (ignored.token_ids, ignored.finish_reason) == ([EOS_ID] * 5, "length")
    params = SamplingParams(temperature=0, max_tokens=5, logit_bias=to_end, ignore_eos=True, stop_token_ids=[EOS_ID])
    assert one(llm, "the", params).stop_reason == EOS_ID


def test_min_tokens_bans_what_would_stop(llm: LLM) -> None:
    to_end = {EOS_ID: 100.0, 40: 99.0}
    params = SamplingParams(temperature=0, max_tokens=9, min_tokens=4, logit_bias=to_end, stop_token_ids=[40])
    sample = one(llm, "the", params)
    assert len(sample.token_ids) == 5
    assert sample.token_ids[-1] == EOS_ID
    assert not {EOS_ID, 40} & set(sample.token_ids[:4])


def test_min_tokens_holds_stop_strings_off(llm: LLM) -> None:
    free = one(llm, "the", HOT)
    stop = free.text[2]
    params = replace(HOT, min_tokens=10, stop=stop, ignore_eos=True)
    assert len(one(llm, "the", params).token_ids) > 10


def test_special_tokens_are_skipped_unless_asked_for(llm: LLM) -> None:
    always = {MARKER_ID: 100.0}
    assert one(llm, "the", SamplingParams(temperature=0, max_tokens=2, logit_bias=always)).text == ""
    shown = SamplingParams(temperature=0, max_tokens=2, logit_bias=always, skip_special_tokens=False)
    assert one(llm, "the", shown).text == MARKER * 2


# ---- log probabilities -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5, 50])
def test_logprobs(llm: LLM, count: int) -> None:
    params = SamplingParams(temperature=1, seed=3, max_tokens=12, logprobs=count)
    sample = one(llm, "the", params)
    full = one(llm, "the", SamplingParams(temperature=1, seed=3, max_tokens=12, logprobs=50)).logprobs
    assert sample.logprobs is not None
    assert full is not None
    assert len(sample.logprobs) == len(sample.token_ids) == 12
    for token_id, found, reference in zip(sample.token_ids, sample.logprobs, full, strict=True):
        assert token_id in found
        ranks = [candidate.rank for candidate in found.values()]
        assert ranks == sorted(set(ranks))
        assert ranks[:count] == list(range(1, count + 1))
        assert len(found) == count + (found[token_id].rank > count)
        values = [candidate.logprob for candidate in found.values()]
        assert values == sorted(values, reverse=True)
        for other_id, candidate in found.items():
            assert candidate.bytes == llm.tokenizer.token_bytes(other_id)
            assert candidate.decoded_token == candidate.bytes.decode(errors="replace")
            assert reference.get(other_id, candidate) == candidate
    chosen = [found[token_id].logprob for token_id, found in zip(sample.token_ids, sample.logprobs, strict=True)]
    assert sample.cumulative_logprob == sum(chosen)


def test_logprobs_are_a_distribution_of_the_model_alone(llm: LLM) -> None:
    """Temperature, penalties and biases change what is chosen, not what is reported."""
    plain = one(llm, "the", SamplingParams(temperature=0, max_tokens=1, logprobs=50))
    biased = one(llm, "the", SamplingParams(temperature=0, max_tokens=1, logprobs=50, logit_bias={33: 100.0}))
    assert plain.logprobs is not None
    assert biased.logprobs is not None
    assert biased.token_ids == [33]
    assert biased.logprobs[0].items() - {(33, biased.logprobs[0][33])} <= plain.logprobs[0].items()
    assert sum(math.exp(candidate.logprob) for candidate in plain.logprobs[0].values()) < 1
    assert next(iter(plain.logprobs[0])) == plain.token_ids[0]


def test_without_logprobs_there_are_none(llm: LLM) -> None:
    sample = one(llm, "the", GREEDY)
    assert sample.logprobs is None
    assert sample.cumulative_logprob is None


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("budget", [1, 3, 7, 512])
def test_prompt_logprobs_do_not_depend_on_chunks(make_llm: Callable[..., LLM], n: int, budget: int) -> None:
    prompt = [3 + 11 * index % 120 for index in range(50)]
    params = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=4, n=n)
    (whole,) = make_llm().generate(prompt, SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=4))
    llm = make_llm(max_num_batched_tokens=budget, max_num_seqs=1 if budget == 1 else 2)
    for _ in ("cold", "with a warm prefix cache"):
        (output,) = llm.generate(prompt, params)
        assert output.prompt_logprobs == whole.prompt_logprobs
        assert len(output.outputs) == n
    assert whole.prompt_logprobs is not None
    assert len(whole.prompt_logprobs) == len(prompt)
    assert whole.prompt_logprobs[0] is None
    for token_id, found in zip(prompt[1:], whole.prompt_logprobs[1:], strict=True):
        assert found is not None
        assert token_id in found
        assert [candidate.rank for candidate in found.values()][:4] == [1, 2, 3, 4]


def test_prompt_logprobs_are_what_decoding_would_have_given(llm: LLM) -> None:
    sample = one(llm, "the", SamplingParams(temperature=0, max_tokens=6, logprobs=3))
    prompt = llm.tokenizer.encode("the") + sample.token_ids
    (output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=3))
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[-6:] == sample.logprobs


def test_prompt_logprobs_of_a_single_token(llm: LLM) -> None:
    (output,) = llm.generate([5], SamplingParams(max_tokens=1, prompt_logprobs=2))
    assert output.prompt_logprobs == [None]


# ---- seeds -----------------------------------------------------------------------------------------------------------


def test_seeds(llm: LLM) -> None:
    def text(seed: int | None) -> str:
        return one(llm, "the", SamplingParams(temperature=1, seed=seed, max_tokens=20, ignore_eos=True)).text

    assert text(5) == text(5)
    assert len({text(seed) for seed in range(10)}) == 10
    assert len({text(None) for _ in range(10)}) == 10
    assert text(-1) == text(2**64 - 1)


def test_a_seed_chosen_by_the_engine_is_reported_and_reproduces_the_draw(llm: LLM) -> None:
    (output,) = llm.generate("the", SamplingParams(temperature=1, n=2, max_tokens=20))
    (again,) = llm.generate("the", SamplingParams(temperature=1, n=2, max_tokens=20, seed=output.seed))
    assert again.outputs == output.outputs
    assert again.seed == output.seed
    (explicit,) = llm.generate("the", SamplingParams(seed=-3, max_tokens=1))
    assert explicit.seed % 2**64 == -3 % 2**64


# ---- cache, metrics --------------------------------------------------------------------------------------------------


def test_num_cached_tokens_and_salts(llm: LLM) -> None:
    prompt = [5 + index for index in range(30)]

    def cached(salt: str | None) -> int:
        return llm.generate(prompt, GREEDY, cache_salt=salt)[0].num_cached_tokens

    assert [cached(None), cached(None)] == [0, 29]
    assert [cached("a"), cached("b"), cached("a"), cached(""), cached("")] == [0, 0, 29, 0, 29]


def test_the_next_turn_reuses_the_whole_conversation(llm: LLM) -> None:
    prompt = [5 + index for index in range(20)]
    sample = one(llm, prompt, SamplingParams(temperature=0, max_tokens=11))
    (second,) = llm.generate([*prompt, *sample.token_ids, 50, 51], GREEDY)
    assert second.num_cached_tokens == 30  # the last generated token was never computed


def test_metrics(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    (output,) = llm.generate([5] * 20, SamplingParams(temperature=0, max_tokens=21))
    metrics = output.metrics
    assert 0 <= metrics.queue_s <= metrics.ttft_s <= metrics.e2e_s < 10
    assert metrics.decode_s == metrics.e2e_s - metrics.ttft_s
    assert metrics.num_blocks == 5  # 40 tokens were computed: the last of 41 is not
    assert (metrics.num_preemptions, metrics.num_recomputed_tokens) == (0, 0)


def test_priorities(make_llm: Callable[..., LLM]) -> None:
    """With one slot, the urgent ones go first, whenever they came."""
    llm = make_llm(max_num_seqs=1)
    for number, priority in enumerate([5, 0, -5, 0]):
        llm.engine.add_request(f"r{number}", [5 + number], GREEDY, priority=priority)
    ended = []
    while llm.engine.has_unfinished_requests:
        ended += [delta.request_id for delta in llm.engine.step() if delta.output is not None]
    assert ended == ["r2", "r1", "r3", "r0"]
