"""The forecast of memory, by numbers that one can follow by hand (block size 4)."""

from __future__ import annotations

import pytest

from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.forecast import MemoryForecast
from octavo.scheduler.output_lengths import OutputLengths


def request(name: str, num_prompt: int, max_output: int) -> Request:
    made = Request(name, range(num_prompt), SamplingParams(max_tokens=max_output))
    made.max_tokens = num_prompt + max_output
    return made


def test_two_bursts_peak_when_all_are_at_their_longest() -> None:
    forecast = MemoryForecast(4)
    forecast.add(request("a", 8, 8), step=0, num_shared_blocks=0)
    forecast.add(request("b", 8, 8), step=0, num_shared_blocks=0)
    # Three requests of 2 blocks now and 4 at the end: 12 at once.
    assert forecast.fits(request("c", 8, 8), 2, num_held=4, num_blocks=13, step=0)
    assert not forecast.fits(request("c", 8, 8), 2, num_held=4, num_blocks=12, step=0)


def test_what_ends_sooner_makes_room() -> None:
    forecast = MemoryForecast(4)
    forecast.add(request("a", 8, 4), step=0, num_shared_blocks=0)
    # a: 3 blocks, then gone; c: 2 blocks now, 3 when a ends, 6 in the end.
    assert forecast.fits(request("c", 8, 16), 2, num_held=2, num_blocks=7, step=0)
    assert not forecast.fits(request("c", 8, 16), 2, num_held=2, num_blocks=6, step=0)


def test_shared_blocks_stay_when_their_request_ends() -> None:
    forecast = MemoryForecast(4)
    forecast.add(request("a", 8, 4), step=0, num_shared_blocks=2)
    # a gives one block back; the two shared ones stay beside c's six.
    assert forecast.fits(request("c", 8, 16), 2, num_held=2, num_blocks=9, step=0)
    assert not forecast.fits(request("c", 8, 16), 2, num_held=2, num_blocks=8, step=0)


def test_a_request_that_has_left_does_not_count() -> None:
    forecast = MemoryForecast(4)
    gone = request("a", 8, 8)
    forecast.add(gone, step=0, num_shared_blocks=0)
    forecast.remove(gone)
    assert forecast.fits(request("c", 8, 8), 2, num_held=0, num_blocks=5, step=0)


def test_lengths_of_outputs_that_came_as_far() -> None:
    lengths = OutputLengths()
    for _ in range(500):
        lengths.learn(10)
        lengths.learn(200)
    assert 90 <= lengths.expected(0) <= 120
    assert 190 <= lengths.expected(50) <= 201
    assert lengths.expected(4000) == 4000 + 1000 + 1


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 5, 100, 10**6])
def test_an_output_is_always_expected_to_go_on(num_tokens: int) -> None:
    assert OutputLengths().expected(num_tokens) > num_tokens
