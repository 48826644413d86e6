"""Messages between the server's process and the engine's."""

from __future__ import annotations

import socket
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.messages import AddRequest, EngineChannel, FinishRequest, MessageBuffer, Sample, encode
from octavo.sampling_params import SamplingParams

ADD = AddRequest(
    samples=(Sample(7, 2**63, array("i", [1, 2]).tobytes()), Sample(8, 1)),
    prompt_token_ids=array("i", range(100)).tobytes(),
    params=SamplingParams(n=2, stop=["x"], logit_bias={5: 1.5}),
    eos_token_ids=frozenset({0}),
    priority=-3,
    cache_salt="salt",
    tenant="someone",
    arrival_s=1.5,
    deadline_s=float("inf"),
    first_scheduled_s=None,
)


@given(st.lists(st.integers(1, 50), min_size=1))
def test_messages_come_out_however_the_stream_is_cut(cuts: list[int]) -> None:
    messages = [ADD, FinishRequest(7, "abort"), ADD]
    stream = b"".join(map(encode, messages))
    buffer, found, start = MessageBuffer(), [], 0
    while start < len(stream):
        size = cuts[start % len(cuts)]
        found += buffer.feed(stream[start : start + size])
        start += size
    assert found == messages


def test_a_prompt_of_100k_tokens_is_a_message_of_400_kb() -> None:
    tokens = array("i", range(100_000)).tobytes()
    message = AddRequest((Sample(1, 1),), tokens, SamplingParams(), frozenset(), 0, None, "", 0.0, 1.0, None)
    assert len(encode(message)) < 401_000


def test_the_engine_waits_looks_and_notices_the_end() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        channel = EngineChannel(theirs)
        assert channel.receive(0.0) == []
        ours.sendall(encode(ADD)[:10])
        assert channel.receive(None) == []
        ours.sendall(encode(ADD)[10:])
        assert channel.receive(None) == [ADD]
        ours.close()
        assert channel.receive(None) is None
        channel.send(FinishRequest(1, "stop"))  # type: ignore[arg-type]  # goes nowhere, and raises nothing


@pytest.mark.parametrize("message", [ADD, FinishRequest(3, "stop")])
def test_messages_survive_the_journey(message: object) -> None:
    (found,) = MessageBuffer().feed(encode(message))  # type: ignore[arg-type]
    assert found == message
