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


def test_least_loaded_counts_unfinished_prompt_tokens() -> None:
    router = LeastLoadedRouter(2)
    large, small = ask((1, 100)), ask((2, 30))
    assert router.choose(large) == 0
    assert [router.choose(small) for _ in range(4)] == [1, 1, 1, 1]
    assert router.choose(small) == 0  # 120 against 100
    router.finished(small, 1)
    assert router.choose(small) == 1


def test_a_known_prefix_draws_until_the_queue_costs_more() -> None:
    router = PrefixAwareRouter(2, 10_000)
    assert router.choose(ask((1, 1000), (2, 50))) == 0
    assert router.choose(ask((3, 100))) == 1
    router.finished(ask((3, 100)), 1)
    router.finished(ask((1, 1000), (2, 50)), 0)
    follow_up = ask((1, 1000), (4, 50))
    assert router.choose(follow_up) == 0  # 50 to compute there, 1050 elsewhere
    assert router.choose(ask((1, 1000), (5, 50))) == 1  # there 1050 wait and 50 would be computed; here 1050


def test_the_longest_match_wins() -> None:
    router = PrefixAwareRouter(3, 10_000)
    for tail in ((2, 10), (3, 10)):
        chosen = router.choose(ask((1, 500), tail))
        router.finished(ask((1, 500), tail), chosen)
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
