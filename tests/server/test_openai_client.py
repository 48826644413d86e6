"""The ``openai`` package, unchanged, against a real server."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from support.running_server import RunningServer

MESSAGES = [{"role": "user", "content": "the stop sting"}]
GREEDY = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}


def stream(client: openai.OpenAI, **fields: object) -> list[ChatCompletionChunk]:
    return list(client.chat.completions.create(**{**GREEDY, **fields}, stream=True))


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def test_a_chat_answer_has_the_shape_that_the_client_expects(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**GREEDY)
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", "tiny")
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.message.role, choice.logprobs) == (
        0,
        "length",
        "assistant",
        None,
    )
    assert choice.message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_a_stream_is_role_then_text_then_end_then_usage(client: openai.OpenAI) -> None:
    chunks = stream(client, stream_options={"include_usage": True})
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    first, *middle, last, usage = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert all(chunk.choices[0].finish_reason is None and chunk.usage is None for chunk in [first, *middle])
    assert (last.choices[0].finish_reason, last.choices[0].delta.content) == ("length", None)
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 12


def test_stream_and_whole_answer_have_the_same_text(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**GREEDY).choices[0].message.content
    assert text_of(stream(client)) == whole


def test_the_usage_tells_where_the_time_went(client: openai.OpenAI) -> None:
    fields = {**GREEDY, "messages": [{"role": "user", "content": "abc" * 40}]}
    client.chat.completions.create(**fields)
    usage = client.chat.completions.create(**fields).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1
    truth = usage.model_extra["octavo"]
    assert truth["cached_tokens"] == usage.prompt_tokens - 1
    assert min(truth["queue_s"], truth["prefill_s"], truth["decode_s"]) >= 0
    assert truth["num_blocks"] == -(-(usage.total_tokens - 1) // 16)
    assert (truth["num_preemptions"], truth["num_engine_restarts"], truth["waited_for"]) == (0, 0, None)


def test_n_samples_differ_and_each_is_what_its_seed_draws_alone(client: openai.OpenAI) -> None:
    drawn = {**GREEDY, "temperature": 1.5}
    together = client.chat.completions.create(**drawn, n=3, seed=5)
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    alone = [client.chat.completions.create(**drawn, seed=5 + index).choices[0].message.content for index in range(3)]
    assert [choice.message.content for choice in together.choices] == alone
    assert len(set(alone)) == 3
    chunks = stream(client, temperature=1.5, n=3, seed=5)
    assert [text_of(chunks, index) for index in range(3)] == alone


def test_logprobs_of_chat_name_tokens_bytes_and_alternatives(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 12
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
        assert entry.token == entry.top_logprobs[0].token
    joined = b"".join(bytes(entry.bytes or []) for entry in logprobs.content)
    assert joined.decode(errors="replace") == answer.choices[0].message.content
    streamed = [
        entry
        for chunk in stream(client, logprobs=True, top_logprobs=3)
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert streamed == logprobs.content


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    text = client.chat.completions.create(**GREEDY).choices[0].message.content or ""
    stop = text[3:5]
    choice = client.chat.completions.create(**GREEDY, stop=[stop]).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == text[: text.index(stop)]
    assert choice.model_extra["stop_reason"] == stop
    assert text_of(stream(client, stop=stop)) == text[: text.index(stop)]


def test_max_completion_tokens_is_the_newer_name_of_the_limit(client: openai.OpenAI) -> None:
    fields = {key: value for key, value in GREEDY.items() if key != "max_tokens"}
    answer = client.chat.completions.create(**fields, max_completion_tokens=3)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_max_tokens_beyond_the_room_is_a_cap(client: openai.OpenAI) -> None:
    prompt = [5] * 4090
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=10_000, extra_body={"ignore_eos": True})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 4096


def test_logit_bias_decides(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**GREEDY, logit_bias={"40": 100}, logprobs=True).choices[0]
    assert choice.logprobs is not None
    assert len({entry.token for entry in choice.logprobs.content or []}) == 1


def test_penalties_keep_a_stream_from_repeating_itself(client: openai.OpenAI) -> None:
    fields = {**GREEDY, "max_tokens": 40}
    plain = client.chat.completions.create(**fields, logprobs=True).choices[0].logprobs
    varied = client.chat.completions.create(**fields, logprobs=True, frequency_penalty=2, presence_penalty=2)
    assert plain is not None
    assert varied.choices[0].logprobs is not None
    count = lambda content: len({entry.token for entry in content})  # noqa: E731
    assert count(varied.choices[0].logprobs.content) > count(plain.content)


def test_completions_echo_the_prompt_with_its_logprobs(client: openai.OpenAI) -> None:
    fields = {"model": "tiny", "prompt": "the stop", "temperature": 0, "max_tokens": 4, "logprobs": 2}
    fields["extra_body"] = {"ignore_eos": True}
    answer = client.completions.create(**fields, echo=True)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    plain = client.completions.create(**fields)
    assert answer.choices[0].text == "the stop" + plain.choices[0].text
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.tokens[:2] == ["the", " stop"]
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in logprobs.token_logprobs[1:])
    assert logprobs.text_offset is not None
    assert logprobs.text_offset[:3] == [0, 3, 8]
    assert len(logprobs.tokens) == len(logprobs.text_offset) == len(logprobs.top_logprobs or []) == 6
    chunks = list(client.completions.create(**fields, echo=True, stream=True))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == answer.choices[0].text
    tokens = [token for chunk in chunks for c in chunk.choices if c.logprobs for token in c.logprobs.tokens or []]
    assert tokens == logprobs.tokens


def test_echo_without_new_tokens_scores_the_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="the stop", max_tokens=0, echo=True, logprobs=1)
    assert answer.choices[0].text == "the stop"
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.tokens or []) == 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


def test_prompt_logprobs_come_per_prompt_token(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt=[10, 11, 12], max_tokens=1, extra_body={"prompt_logprobs": 0}
    )
    first, second, third = answer.choices[0].model_extra["prompt_logprobs"]
    assert first is None
    assert (list(second), list(third)) == (["11"], ["12"])
    assert second["11"]["logprob"] < 0 < second["11"]["rank"]


def test_timing_side_channel(client: openai.OpenAI) -> None:
    """Who has another salt finds nothing of others in the cache, and so cannot tell from the time what they asked."""

    def cached(salt: str) -> int:
        answer = client.completions.create(
            model="tiny", prompt=[17] * 100, max_tokens=1, extra_body={"cache_salt": salt}
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    assert cached("mine") == 0
    assert cached("mine") >= 96
    assert cached("yours") == 0


def test_many_prompts_times_n_are_choices_in_order(client: openai.OpenAI) -> None:
    fields = {"model": "tiny", "max_tokens": 5, "temperature": 1.2, "seed": 3, "extra_body": {"ignore_eos": True}}
    answer = client.completions.create(**fields, prompt=["abc", "the sting"], n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    alone = [client.completions.create(**fields, prompt=prompt, n=2) for prompt in ("abc", "the sting")]
    texts = [choice.text for choice in answer.choices]
    assert texts == [choice.text for each in alone for choice in each.choices]
    streamed = dict.fromkeys(range(4), "")
    for chunk in client.completions.create(**fields, prompt=["abc", "the sting"], n=2, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert list(streamed.values()) == texts


def test_models_are_listed_and_others_are_not_found(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "octavo")
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="served is tiny") as error:
        client.chat.completions.create(**{**GREEDY, "model": "gpt-9"})
    assert error.value.code == "model_not_found"


def test_content_in_parts_and_the_developer_role_are_understood(client: openai.OpenAI) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "the stop sting"}]}]
    plain = client.chat.completions.create(**GREEDY).choices[0].message.content
    assert client.chat.completions.create(**{**GREEDY, "messages": parts}).choices[0].message.content == plain
    developer = [{"role": "developer", "content": "abc"}, *MESSAGES]
    system = [{"role": "system", "content": "abc"}, *MESSAGES]
    one, other = (
        client.chat.completions.create(**{**GREEDY, "messages": messages}).choices[0].message.content
        for messages in (developer, system)
    )
    assert one == other


def test_an_answer_can_be_sent_back_as_the_client_got_it(client: openai.OpenAI) -> None:
    message = client.chat.completions.create(**GREEDY).choices[0].message
    again = [*MESSAGES, message, {"role": "user", "content": "abc"}]
    assert client.chat.completions.create(**{**GREEDY, "messages": again}).choices[0].message.content


def test_async_clients_stream_side_by_side(server: RunningServer) -> None:
    async def one(client: openai.AsyncOpenAI, index: int) -> str:
        fields = {**GREEDY, "temperature": 1.0, "seed": index, "max_tokens": 40}
        chunks = [chunk async for chunk in await client.chat.completions.create(**fields, stream=True)]
        return text_of(chunks)

    async def many() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            together = await asyncio.gather(*(one(client, index) for index in range(16)))
            return list(together), [await one(client, index) for index in range(16)]

    together, alone = asyncio.run(many())
    assert together == alone
    assert len(set(alone)) == 16
