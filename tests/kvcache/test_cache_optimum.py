"""The yardstick of eviction policies: it is the true optimum, and no policy hits more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from cache_replay.optimum import optimum
from cache_replay.replay import replay
from cache_replay.traces import BLOCK_TOKENS, TraceRequest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.kvcache.policies.lru import LRUPolicy
from octavo.kvcache.policies.registry import POLICY_NAMES, create_policy

CHAINS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=1, max_size=9)
"""Prompts as paths in a binary tree, so that prefixes meet."""


def block_ids(paths: list[list[int]]) -> list[list[int]]:
    """A number for each prefix."""
    numbers: dict[tuple[int, ...], int] = {}
    return [[numbers.setdefault(tuple(path[: end + 1]), len(numbers)) for end in range(len(path))] for path in paths]


def brute_force(chains: list[list[int]], capacity: int) -> int:
    """Try every set of blocks that may be kept after each request."""

    @cache
    def best(number: int, kept: frozenset[int]) -> int:
        if number == len(chains):
            return 0
        chain = chains[number][:capacity]
        num_hits = next((depth for depth, block in enumerate(chain) if block not in kept), len(chain))
        others = sorted(kept - set(chain))
        options = subsets(others, capacity - len(chain))
        return num_hits + max(best(number + 1, frozenset({*option, *chain})) for option in options)

    def subsets(blocks: list[int], most: int) -> list[list[int]]:
        found: list[list[int]] = [[]]
        for block in blocks:
            found += [[*each, block] for each in found if len(each) < most]
        return found

    return best(0, frozenset())


def test_the_optimum_of_a_small_case() -> None:
    """Of two blocks beside the one in use, keep the two that come back soonest: three hits of 0, 1 and 2."""
    assert optimum([[0], [1], [2], [0], [1], [2]], 3) == 3
    assert optimum([[0], [1], [2], [0], [1], [2]], 2) == 2
    assert optimum([[0], [1], [2], [0], [1], [2]], 1) == 0


@settings(max_examples=80, deadline=None)
@given(paths=CHAINS, capacity=st.integers(1, 5))
def test_the_optimum_equals_brute_force(paths: list[list[int]], capacity: int) -> None:
    chains = block_ids(paths)
    assert optimum(chains, capacity) == brute_force(chains, capacity)


@pytest.mark.parametrize("policy", POLICY_NAMES)
@settings(max_examples=40, deadline=None)
@given(paths=CHAINS, capacity=st.integers(1, 6), pause_s=st.sampled_from([0.0, 0.3, 40.0]))
def test_no_policy_hits_more_than_the_optimum(
    policy: str, paths: list[list[int]], capacity: int, pause_s: float
) -> None:
    chains = block_ids(paths)
    requests = [
        TraceRequest(number * pause_s, chain, len(chain) * BLOCK_TOKENS, 10, None)
        for number, chain in enumerate(chains)
    ]
    assert replay(requests, capacity, create_policy(policy, capacity, BLOCK_TOKENS)) <= optimum(chains, capacity)


class Witness(LRUPolicy):
    """Notes how many blocks each prompt is said to have."""

    learns = True

    def __init__(self) -> None:
        super().__init__()
        self.num_blocks: list[int] = []

    def begin(self, request_id: str, chain: Sequence[int], now_s: float) -> None:
        self.num_blocks.append(len(chain))


def test_a_policy_sees_the_blocks_of_the_trace_and_no_other() -> None:
    witness = Witness()
    chains = [[0, 1, 2], [0, 1], [], [3, 4, 5, 6]]
    replay([TraceRequest(float(at), chain, 2000, 1, None) for at, chain in enumerate(chains)], 3, witness)
    assert witness.num_blocks == [3, 2, 0, 3]


@pytest.mark.parametrize("policy", POLICY_NAMES)
@settings(max_examples=20, deadline=None)
@given(paths=CHAINS, capacity=st.integers(1, 6), pause_s=st.sampled_from([0.3, 40.0]))
def test_small_blocks_are_replayed_like_real_ones(
    policy: str, paths: list[list[int]], capacity: int, pause_s: float
) -> None:
    requests = [
        TraceRequest(number * pause_s, chain, len(chain) * BLOCK_TOKENS, 10, None)
        for number, chain in enumerate(block_ids(paths * 3))
    ]
    small, real = (
        replay(requests, capacity, create_policy(policy, capacity, BLOCK_TOKENS), block_tokens=block_tokens)
        for block_tokens in (2, BLOCK_TOKENS)
    )
    assert small == real


def test_lru_is_far_from_the_optimum_in_a_loop_that_is_too_long() -> None:
    """A pool of three, a loop of four: LRU never hits. Of eight reuses the optimum hits six."""
    chains = [[number % 4] for number in range(12)]
    requests = [TraceRequest(float(at), chain, BLOCK_TOKENS, 1, None) for at, chain in enumerate(chains)]
    assert replay(requests, 3, create_policy("lru", 3, BLOCK_TOKENS)) == 0
    assert optimum(chains, 3) == 6
