"""Eviction policies: each keeps the manager's invariants, and evicts what its name promises."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import HealthCheck, settings
from support.engine_machine import EngineMachine

from octavo.config import CacheConfig
from octavo.errors import ConfigError
from octavo.kvcache import block_hash
from octavo.kvcache.eviction import EvictionPolicy, Turn
from octavo.kvcache.manager import PagedKVCacheManager
from octavo.kvcache.policies.gdsf import GDSFPolicy
from octavo.kvcache.policies.registry import POLICY_NAMES, create_policy
from octavo.kvcache.policies.reuse import REMEMBERED, ReusePolicy
from octavo.kvcache.policies.reuse_model import AGE_BINS, LEVELS, HazardModel
from octavo.namespace import DEFAULT_NAMESPACE


def run_machine(policy: str, max_examples: int) -> None:
    """Random lives of requests with this policy; fails with the shortest life that breaks an invariant."""
    machine = type(f"Machine_{policy}", (EngineMachine,), {"policy_name": policy})
    limits = settings(
        max_examples=max_examples, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    machine.TestCase.settings = limits
    machine.TestCase("runTest").runTest()


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_invariants_hold_through_random_lives(policy: str) -> None:
    run_machine(policy, max_examples=15)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_invariants_hold_when_hashes_collide(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_hash, "hash_block", lambda parent_hash, tokens: hash(tokens) % 5)
    run_machine(policy, max_examples=8)


class Cache:
    """Serves prompts of whole blocks, one request at a time, in a pool of blocks of one token."""

    def __init__(self, policy: EvictionPolicy | str, num_blocks: int) -> None:
        if isinstance(policy, str):
            policy = create_policy(policy, num_blocks, 1)
        self.manager = PagedKVCacheManager(num_blocks + 1, 1, policy=policy)
        self.num_served = 0

    def serve(self, prompt: str, ending: str | None = None) -> int:
        """One token for each letter, at the next second; returns how many were cached."""
        ids = array("i", (ord(letter) for letter in prompt + "."))
        name, manager = f"r{self.num_served}", self.manager
        self.num_served += 1
        manager.block_pool.now_s = float(self.num_served)
        match = manager.match_prefix(ids)
        num_cached = manager.admit(name, len(ids), match, DEFAULT_NAMESPACE, ids)
        assert num_cached is not None
        manager.cache_blocks(name, ids, len(prompt))
        manager.free(name, Turn(1, ending))
        manager.check_integrity()
        return num_cached

    def cached(self) -> str:
        """Last letters of all cached prefixes, sorted."""
        return "".join(sorted(chr(array("i", block.tokens)[0]) for block in self.manager.block_pool.policy))


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_block_that_others_continue_stays_though_it_is_older(policy: str) -> None:
    cache = Cache(policy, 3)
    for prompt in ("ab", "abc", "abc", "x"):
        cache.serve(prompt)
    assert cache.cached() == ("x" if policy == "radix-lru" else "abx")


def test_lru_evicts_the_least_recently_used_and_ends_first() -> None:
    cache = Cache("lru", 4)
    for prompt in ("ab", "cd", "ab", "e"):
        cache.serve(prompt)
    assert cache.cached() == "abce"
    assert cache.serve("fg") == 0
    assert cache.cached() == "aefg"


def test_radix_lru_evicts_whole_leaves_down_to_a_branch() -> None:
    """For one block the whole leaf ``xyz`` goes, where LRU takes its end only; later ``cd``, for ``ab`` lives on."""
    cached = {}
    for policy in ("radix-lru", "lru"):
        cache = Cache(policy, 8)
        for prompt in ("xyz", "abcd", "abe", "v"):
            cache.serve(prompt)
        cached[policy] = [cache.cached()]
        cache.serve("ghij")
        cached[policy].append(cache.cached())
    assert cached == {"radix-lru": ["abcdev", "abeghijv"], "lru": ["abcdevxy", "abeghijv"]}


def test_sieve_spares_what_was_used_and_does_not_trust_the_new() -> None:
    """The hand clears ``a``, takes ``b``, ``c`` and then ``d``, which nobody has used; LRU takes ``a`` instead."""
    cached = {}
    for policy in ("sieve", "lru"):
        cache = Cache(policy, 3)
        for letter in "abcadef":
            cache.serve(letter)
        cached[policy] = cache.cached()
    assert cached == {"sieve": "aef", "lru": "def"}


def test_s3_fifo_keeps_what_passed_probation_through_a_scan() -> None:
    """``a`` was used on probation; ``b`` failed it, was remembered, and came back: neither goes for the others."""
    cache = Cache("s3-fifo", 10)
    for letter in "abcdefghij" + "a" + "k":
        cache.serve(letter)
    assert cache.cached() == "acdefghijk"
    assert cache.serve("b") == 0
    for letter in "lmnopqrstuvwxyz":
        cache.serve(letter)
    assert cache.cached() == "ab" + "stuvwxyz"


def test_gdsf_keeps_what_is_used_often_until_the_clock_has_passed_it() -> None:
    cache = Cache("gdsf", 4)
    for letter in "aaabcdefg":
        cache.serve(letter)
    assert cache.cached() == "aefg"
    for letter in "hijklmnopq":
        cache.serve(letter)
    assert cache.cached() == "nopq"


def test_gdsf_keeps_the_deeper_block_for_it_is_dearer() -> None:
    cache = Cache(GDSFPolicy(block_size=30000), 3)
    for prompt in ("xy", "z", "w"):
        cache.serve(prompt)
    assert cache.cached() == "wxy"


def test_reuse_keeps_what_comes_back_over_newer_blocks_that_never_do() -> None:
    """Two prompts alternate among a stream of others; LRU, in the same pool, never hits."""
    hits = {"lru": 0, "reuse": 0}
    for name in hits:
        cache = Cache(name, 8)
        others = iter(range(1000, 5000))
        for turn in range(200):
            hits[name] += cache.serve("ab" if turn % 2 else "cd", ending="tool_calls")
            for _ in range(4):
                cache.serve("".join(chr(next(others)) for _ in range(2)), ending="stop")
    assert hits["lru"] == 0
    assert hits["reuse"] > 300, hits  # of 396


def test_reuse_remembers_a_bounded_number_of_evicted_blocks() -> None:
    policy = ReusePolicy(4, 1)
    cache = Cache(policy, 4)
    for number in range(1000):
        cache.serve(chr(1000 + number) + chr(5000 + number))
    assert policy.num_remembered == REMEMBERED * 4


def test_an_index_without_evidence_falls_with_age() -> None:
    """Before anything is seen the order is that of LRU: the rate of reuse is about 1 / age."""
    model = HazardModel()
    profile = model.profile((("hits", 0),))
    index = model.indices(profile)
    assert len(index) == AGE_BINS
    assert index[1:] == sorted(index[1:], reverse=True)
    assert index[2] / index[22] == pytest.approx(2.0**10, rel=0.01)


def test_the_model_learns_the_rate_of_a_bin_and_the_effect_of_a_feature() -> None:
    """Half of the one kind is reused in bin 3, a twentieth of the other; the index there orders them so."""
    model = HazardModel()
    often, seldom = model.profile((("kind", 1),)), model.profile((("kind", 2),))
    for number in range(2000):
        for profile, every in ((often, 2), (seldom, 20)):
            model.enter(profile, 3, 1.0)
            model.leave(profile, 3, 1.0, reused=number % every == 0)
        if number % 50 == 0:
            model.refresh()
    assert model.indices(often)[3] / model.indices(seldom)[3] == pytest.approx(10.0, rel=0.5)


def test_the_level_of_an_index_follows_at_the_next_refresh() -> None:
    model = HazardModel()
    profile = model.profile((("kind", 1),))
    before = model.level(profile, 3)
    for _ in range(100):
        model.enter(profile, 3, 1.0)
        model.leave(profile, 3, 1.0, reused=True)
    assert model.level(profile, 3) == before
    model.refresh()
    assert before < model.level(profile, 3) < LEVELS


def test_reuse_gives_up_a_run_of_blocks_at_once_up_to_where_another_prefix_branches_off() -> None:
    policy = ReusePolicy(8, 1)
    cache = Cache(policy, 8)
    for prompt in ("abxyz", "abc"):
        cache.serve(prompt)
    texts = [bytes(block.tokens)[:1] for block in policy.evict(8)]
    assert texts == [b"z", b"y", b"x"]


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"eviction_policy must be one of lru, .*reuse, not 'mru'"):
        CacheConfig(eviction_policy="mru")
