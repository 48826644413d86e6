"""Who gets what."""

from __future__ import annotations

import pytest

from octavo.errors import ConfigError
from octavo.simulator.router import LeastLoadedRouter, PrefixAwareRouter, RoundRobinRouter, create_router
from octavo.simulator.workload import WorkloadRequest


def ask(*segments: tuple[int, int], name: str = "r") -> WorkloadRequest:
    return WorkloadRequest(name, 0.0, segments, 10, 99)


def test_round_robin_takes_turns() -> None:
    router = RoundRobinRouter(3)
    assert [router.choose(ask((1, 10))) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_least_loaded_counts_prompts_until_they_are_computed_and_answers_until_they_end() -> None:
    router = LeastLoadedRouter(2)
    large, small = ask((1, 1000), name="large"), [ask((2, 300), name=f"small{number}") for number in range(6)]
    assert router.choose(large) == 0
    assert [router.choose(request) for request in small[:4]] == [1, 1, 1, 1]
    assert router.choose(small[4]) == 0  # 1032 against 4 × 332
    router.started(large, 0)
    router.started(small[4], 0)
    assert router._loads.tokens == [2 * 32, 4 * 332]
    router.finished(large, 0)
    router.finished(small[0], 1)  # refused: no first token
    assert router._loads.tokens == [32, 3 * 332]


def test_a_known_prefix_draws_until_the_queue_costs_more() -> None:
    router = PrefixAwareRouter(2, 10_000)
    first, other = ask((1, 1000), (2, 50), name="first"), ask((3, 100), name="other")
    assert (router.choose(first), router.choose(other)) == (0, 1)
    for request, replica in ((first, 0), (other, 1)):
        router.started(request, replica)
        router.finished(request, replica)
    assert router.choose(ask((1, 1000), (4, 50), name="short")) == 0  # 50 to compute there, 1050 elsewhere
    assert router.choose(ask((1, 1000), (5, 900), name="long")) == 0  # 900 and a load of 82, against 1900
    assert router.choose(ask((1, 1000), (6, 50), name="late")) == 1  # 50 and a load of 1014, against 1050


def test_the_longest_match_wins() -> None:
    router = PrefixAwareRouter(3, 10_000)
    for tail in ((2, 10), (3, 10)):
        router.finished(ask((1, 500), tail), router.choose(ask((1, 500), tail)))
    assert router.choose(ask((1, 500), (3, 10), (4, 5))) == 0  # both tails went to the replica that had the head


def test_what_was_used_least_recently_is_forgotten() -> None:
    router = PrefixAwareRouter(2, 220)
    first, second = ask((1, 100)), ask((2, 100))
    assert router.choose(first) == 0
    assert router.choose(second) == 1
    router.finished(first, 0)
    assert router.choose(ask((3, 150))) == 0  # replica 0 now knows 3, and 1 no more
    router.finished(ask((3, 150)), 0)
    router.finished(second, 1)
    assert router._owners.keys() >= {2, 3}
    assert 1 not in router._owners


def test_an_unknown_router_is_an_error() -> None:
    with pytest.raises(ConfigError, match="router must be one of round-robin, least-loaded, prefix-aware, not random"):
        create_router("random", 2, 100)
