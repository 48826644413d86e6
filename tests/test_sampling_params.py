"""Sampling parameters: every bound and its message, what they become, values that cannot change."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from octavo import SamplingParams
from octavo.errors import OctavoError, RequestError
from octavo.sampling_params import MAX_LOGPROBS, MAX_N

BOUNDS = {
    "n": (1, MAX_N),
    "top_k": (-1, 2**31 - 1),
    "seed": (-(2**63), 2**64 - 1),
    "max_tokens": (1, 2**31 - 1),
    "min_tokens": (0, 2**31 - 1),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}
RANGES = {
    "temperature": (0.0, 100.0, "[0, 100]"),
    "min_p": (0.0, 1.0, "[0, 1]"),
    "presence_penalty": (-2.0, 2.0, "[-2, 2]"),
    "frequency_penalty": (-2.0, 2.0, "[-2, 2]"),
}
OPEN_RANGES = {"top_p": (1.0, "(0, 1]"), "repetition_penalty": (100.0, "(0, 100]")}


def refusal(**keywords: Any) -> str:
    with pytest.raises(RequestError) as error:
        SamplingParams(**keywords)
    assert isinstance(error.value, OctavoError)
    assert isinstance(error.value, ValueError)
    return str(error.value)


@pytest.mark.parametrize("name", BOUNDS)
def test_whole_numbers(name: str) -> None:
    low, high = BOUNDS[name]
    others = {"max_tokens": None} if name == "min_tokens" else {}
    for value in (low, high):
        assert getattr(SamplingParams(**{name: value, **others}), name) == value
    for value in (low - 1, high + 1):
        assert refusal(**{name: value}) == f"{name} must be between {low} and {high}, not {value}"
    for wrong in (1.0, "1", True, [1]):
        assert refusal(**{name: wrong}) == f"{name} must be an integer, not {wrong!r}"


@pytest.mark.parametrize("name", ["n", "top_k", "min_tokens", "temperature", "top_p", "min_p"])
def test_what_has_no_none(name: str) -> None:
    assert "not None" in refusal(**{name: None})


@pytest.mark.parametrize("name", RANGES)
def test_numbers(name: str) -> None:
    low, high, interval = RANGES[name]
    for value in (low, high, int(high)):
        assert getattr(SamplingParams(**{name: value}), name) == value
    for value in (low - 0.001, high + 0.001, float("nan"), float("inf")):
        assert refusal(**{name: value}) == f"{name} must be in {interval}, not {value}"
    for wrong in ("1", True, None):
        assert refusal(**{name: wrong}) == f"{name} must be a number, not {wrong!r}"


@pytest.mark.parametrize("name", OPEN_RANGES)
def test_numbers_above_zero(name: str) -> None:
    high, interval = OPEN_RANGES[name]
    for value in (1e-9, high):
        assert getattr(SamplingParams(**{name: value}), name) == value
    for value in (0, 0.0, -0.1, high + 0.001):
        assert refusal(**{name: value}) == f"{name} must be in {interval}, not {value}"


@pytest.mark.parametrize("name", ["ignore_eos", "skip_special_tokens", "include_stop_str_in_output"])
def test_switches(name: str) -> None:
    for value in (True, False):
        assert getattr(SamplingParams(**{name: value}), name) is value
    assert refusal(**{name: 1}) == f"{name} must be true or false, not 1"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"min_tokens": 17}, "min_tokens (17) must not exceed max_tokens (16)"),
        ({"stop": ""}, "stop must hold non-empty strings, not ''"),
        ({"stop": ["a", ""]}, "stop must hold non-empty strings, not ''"),
        ({"stop": [3]}, "stop must hold non-empty strings, not 3"),
        ({"stop": b"ab"}, "stop must hold non-empty strings, not 97"),
        ({"stop": None}, "stop must be a list, not None"),
        ({"stop_token_ids": 3}, "stop_token_ids must be a list, not 3"),
        ({"stop_token_ids": ["3"]}, "stop_token_ids must be an integer, not '3'"),
        ({"stop_token_ids": [-1]}, f"stop_token_ids must be between 0 and {2**31 - 1}, not -1"),
        ({"logit_bias": [3]}, "logit_bias must map token ids to numbers, not [3]"),
        ({"logit_bias": {"3": 1.0}}, "logit_bias token id must be an integer, not '3'"),
        ({"logit_bias": {-3: 1.0}}, f"logit_bias token id must be between 0 and {2**31 - 1}, not -3"),
        ({"logit_bias": {3: 100.5}}, "logit_bias must be in [-100, 100], not 100.5"),
        ({"logit_bias": {3: "1"}}, "logit_bias must be a number, not '1'"),
    ],
)
def test_what_else_is_refused(keywords: dict[str, Any], message: str) -> None:
    assert refusal(**keywords) == message


def test_min_tokens_without_max_tokens() -> None:
    assert SamplingParams(min_tokens=1000, max_tokens=None).min_tokens == 1000


def test_an_unknown_keyword_and_a_positional_argument() -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        SamplingParams(2)  # type: ignore[misc]


def test_lists_become_values_of_their_own() -> None:
    stop, stop_token_ids, logit_bias = ["a", "b"], [3, 4], {5: 1.0}
    params = SamplingParams(stop=stop, stop_token_ids=stop_token_ids, logit_bias=logit_bias)
    stop.append("c")
    stop_token_ids.append(5)
    logit_bias[6] = 2.0
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("a", "b"), (3, 4), {5: 1.0})
    assert SamplingParams(stop="abc").stop == ("abc",)
    assert SamplingParams().stop == ()


def test_parameters_are_values() -> None:
    assert SamplingParams(stop=["a"]) == SamplingParams(stop="a")
    assert hash(SamplingParams(stop=["a"], stop_token_ids=[3])) == hash(SamplingParams(stop="a", stop_token_ids=(3,)))
    for field in dataclasses.fields(SamplingParams):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(SamplingParams(), field.name, None)


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (9e-6, True), (1e-5, False), (1.0, False)])
def test_greedy(temperature: float, greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).is_greedy is greedy


def test_who_needs_to_know_what_was_said() -> None:
    assert not SamplingParams().needs_history
    assert SamplingParams(repetition_penalty=1.01).needs_history
    assert SamplingParams(presence_penalty=-0.1).needs_history
    assert SamplingParams(frequency_penalty=0.1).needs_history
