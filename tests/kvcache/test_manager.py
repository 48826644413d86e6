"""The manager gives exactly the blocks that the tokens need; literal block ids show which."""

from __future__ import annotations

from array import array

import pytest

from octavo.kvcache.manager import NO_MATCH, PagedKVCacheManager
from octavo.namespace import DEFAULT_NAMESPACE, Namespace


def tokens(*ids: int) -> array[int]:
    return array("i", ids)


def admit(manager: PagedKVCacheManager, name: str, ids: array[int], namespace: Namespace = DEFAULT_NAMESPACE) -> int:
    """Admit a request, compute all of it and enter it into the prefix cache; returns its cached tokens."""
    num_cached = manager.admit(name, len(ids), manager.match_prefix(ids, namespace), namespace)
    assert num_cached is not None
    manager.take_copies()
    manager.cache_blocks(name, ids, len(ids))
    manager.check_integrity()
    return num_cached


def finish(manager: PagedKVCacheManager, name: str, ids: array[int]) -> None:
    manager.cache_tail(name, ids, len(ids))
    manager.free(name)
    manager.check_integrity()


def test_a_request_holds_exactly_the_blocks_of_its_tokens() -> None:
    manager = PagedKVCacheManager(num_blocks=8, block_size=4)
    assert manager.allocate("a", 6) == [0, 1]
    assert manager.allocate("a", 1) == [0, 1]
    assert manager.allocate("a", 1) == [0, 1]
    assert manager.allocate("a", 1) == [0, 1, 2]
    assert manager.get_block_table("a") == [0, 1, 2]
    assert manager.block_pool.get_num_free_blocks() == 5


def test_decode_steps_count_tokens_not_capacity() -> None:
    """The lesson's first fault: counting capacity takes a new block at every decode step."""
    manager = PagedKVCacheManager(num_blocks=8, block_size=4)
    manager.allocate("a", 1)
    for num_tokens in range(2, 30):
        manager.allocate("a", 1)
        assert len(manager.get_block_table("a")) == -(-num_tokens // 4)


def test_blocks_carry_reference_counts() -> None:
    """The lesson's fourth fault: without them nothing can be shared."""
    manager = PagedKVCacheManager(num_blocks=4, block_size=4)
    manager.allocate("a", 8)
    manager.fork("a", "b")
    assert [block.ref_count for block in manager.block_pool.blocks] == [2, 2, 0, 0]
    manager.free("a")
    assert manager.get_block_table("b") == [0, 1]
    assert manager.block_pool.get_num_free_blocks() == 2
    manager.free("b")
    assert manager.block_pool.get_num_free_blocks() == 4


def test_allocation_is_all_or_nothing() -> None:
    manager = PagedKVCacheManager(num_blocks=3, block_size=4)
    manager.allocate("a", 4)
    assert manager.can_allocate(8)
    assert not manager.can_allocate(9)
    assert manager.allocate("b", 9) is None
    assert manager.request_ids() == ["a"]
    assert manager.can_allocate(8, "a")
    assert not manager.can_allocate(9, "a")
    assert manager.allocate("a", 9) is None
    assert manager.get_block_table("a") == [0]
    manager.check_integrity()


def test_freed_blocks_come_back_last_freed_first() -> None:
    manager = PagedKVCacheManager(num_blocks=4, block_size=4)
    manager.allocate("a", 12)
    manager.free("a")
    assert [block.block_id for block in manager.block_pool.free_queue.blank] == [3, 2, 1, 0]
    assert manager.allocate("b", 8) == [0, 1]


def test_double_free_is_caught() -> None:
    manager = PagedKVCacheManager(num_blocks=4, block_size=4)
    manager.allocate("a", 4)
    block = manager.block_pool.blocks[0]
    manager.free("a")
    with pytest.raises(AssertionError, match="double free"):
        manager.block_pool.free_block(block)
    with pytest.raises(KeyError):
        manager.free("a")


def test_full_blocks_of_equal_prefixes_are_shared() -> None:
    manager = PagedKVCacheManager(num_blocks=8, block_size=4)
    a = tokens(1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert admit(manager, "a", a) == 0
    b = tokens(1, 2, 3, 4, 5, 6, 7, 8, 10, 11)
    assert admit(manager, "b", b) == 8
    assert manager.get_block_table("a") == [0, 1, 2]
    assert manager.get_block_table("b") == [0, 1, 3]


def test_a_prefix_that_ends_inside_a_block_is_copied_to_the_token() -> None:
    manager = PagedKVCacheManager(num_blocks=8, block_size=4)
    admit(manager, "a", tokens(1, 2, 3, 4, 5, 6, 7, 8, 9))
    b = tokens(1, 2, 3, 4, 5, 6, 99, 98, 97)
    match = manager.match_prefix(b)
    assert match.num_tokens == 6
    assert manager.admit("b", len(b), match, DEFAULT_NAMESPACE) == 6
    assert manager.get_block_table("b") == [0, 3, 4]
    assert manager.take_copies() == [(1, 3)]
    manager.check_integrity()


def test_the_last_token_is_always_computed() -> None:
    manager = PagedKVCacheManager(num_blocks=8, block_size=4)
    ids = tokens(1, 2, 3, 4, 5, 6, 7, 8)
    admit(manager, "a", ids)
    assert admit(manager, "b", ids) == 7


def test_the_tail_of_a_finished_request_is_reused() -> None:
    """The next turn of a conversation computes nothing of the last one again."""
    manager = PagedKVCacheManager(num_blocks=8, block_size=4)
    first = tokens(1, 2, 3, 4, 5, 6)
    admit(manager, "a", first)
    finish(manager, "a", first)
    assert admit(manager, "b", tokens(1, 2, 3, 4, 5, 6, 7, 8, 9)) == 6


def test_equal_blocks_computed_twice_become_one() -> None:
    manager = PagedKVCacheManager(num_blocks=8, block_size=4)
    ids = tokens(1, 2, 3, 4, 5, 6, 7, 8, 9)
    for name in "ab":
        manager.admit(name, len(ids), NO_MATCH, DEFAULT_NAMESPACE)
    manager.cache_blocks("a", ids, 9)
    manager.cache_blocks("b", ids, 9)
    assert manager.get_block_table("a") == [0, 1, 2]
    assert manager.get_block_table("b") == [0, 1, 5]
    assert manager.take_updates() == [("b", 0, [0]), ("b", 1, [1])]
    assert manager.block_pool.get_num_free_blocks() == 4
    manager.check_integrity()


def test_eviction_takes_the_oldest_and_ends_before_beginnings() -> None:
    manager = PagedKVCacheManager(num_blocks=4, block_size=4)
    old, new = tokens(1, 2, 3, 4, 5, 6, 7, 8), tokens(11, 12, 13, 14, 15, 16, 17, 18)
    for name, ids in (("old", old), ("new", new)):
        admit(manager, name, ids)
        finish(manager, name, ids)
    assert [block.block_id for block in manager.block_pool.free_queue.policy] == [1, 0, 3, 2]
    assert manager.match_prefix(tokens(*old, 0)).num_tokens == 8
    manager.allocate("c", 4)
    assert manager.get_block_table("c") == [1]
    assert manager.match_prefix(tokens(*old, 0)).num_tokens == 4
    assert manager.match_prefix(tokens(*new, 0)).num_tokens == 8
    manager.check_integrity()


def test_salts_share_nothing() -> None:
    """Timing side channel: a different salt has no cached tokens; the same salt has."""
    manager = PagedKVCacheManager(num_blocks=16, block_size=4)
    ids = tokens(*range(9))
    assert admit(manager, "a", ids, Namespace(salt="x")) == 0
    assert admit(manager, "b", ids, Namespace(salt="y")) == 0
    assert admit(manager, "c", ids) == 0
    assert admit(manager, "d", ids, Namespace(salt="x")) == 8


def test_an_adapter_is_part_of_the_key() -> None:
    """Incomplete key: a reloaded adapter must not find the old one's blocks."""
    manager = PagedKVCacheManager(num_blocks=16, block_size=4)
    ids = tokens(*range(9))
    assert admit(manager, "a", ids, Namespace(adapter="law@1")) == 0
    assert admit(manager, "b", ids, Namespace(adapter="law@2")) == 0


def test_hash_collisions_cost_time_never_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.kvcache.block_hash.hash_block", lambda parent_hash, tokens: 7)
    manager = PagedKVCacheManager(num_blocks=32, block_size=4)
    a, b = tokens(*range(13)), tokens(*range(50, 63))
    assert admit(manager, "a", a) == 0
    assert admit(manager, "b", b) == 0
    assert admit(manager, "c", a) == 12
    assert manager.get_block_table("c")[:3] == manager.get_block_table("a")[:3]
    crossed = tokens(0, 1, 2, 3, 54, 55, 56, 57, 58)
    assert admit(manager, "d", crossed) == 4
    for name, ids in (("a", a), ("b", b), ("c", a), ("d", crossed)):
        finish(manager, name, ids)
    manager.allocate("all", 32 * 4)
    manager.check_integrity()


def test_the_first_write_to_a_shared_partial_block_copies_it() -> None:
    manager = PagedKVCacheManager(num_blocks=8, block_size=4)
    manager.allocate("a", 6)
    manager.fork("a", "b")
    assert manager.get_block_table("b") == [0, 1]
    assert manager.allocate("b", 1) == [0, 2]
    assert manager.take_copies() == [(1, 2)]
    assert manager.take_updates()[-1] == ("b", 1, [2])
    assert manager.allocate("a", 1) == [0, 1]
    assert manager.take_copies() == []
    manager.check_integrity()


def test_a_fork_hears_of_changes_that_its_parent_has_not_passed_on() -> None:
    """The executor copies the parent's table as it knows it: before equal blocks became one."""
    manager = PagedKVCacheManager(num_blocks=8, block_size=4)
    ids = tokens(1, 2, 3, 4, 5)
    for name in "ab":
        manager.admit(name, len(ids), NO_MATCH, DEFAULT_NAMESPACE)
        manager.cache_blocks(name, ids, 5)
    manager.fork("b", "c")
    assert manager.take_updates() == [("b", 0, [0]), ("c", 0, [0])]
    manager.check_integrity()


def test_a_copy_that_was_never_made_is_not_cached() -> None:
    """A request preempted between the plan to copy its shared tail and the step that would have copied."""
    manager = PagedKVCacheManager(num_blocks=8, block_size=4)
    ids = tokens(1, 2, 3, 4, 5, 6)
    manager.admit("a", len(ids), NO_MATCH, DEFAULT_NAMESPACE)
    manager.cache_blocks("a", ids, 6)
    manager.fork("a", "b")
    assert manager.allocate("b", 1) == [0, 2]
    manager.free("a")
    finish(manager, "b", ids)
    assert manager.take_copies() == []
    match = manager.match_prefix(tokens(1, 2, 3, 4, 5, 6, 7))
    assert (match.num_tokens, match.partial) == (6, manager.block_pool.blocks[1])


def test_a_fork_needs_a_block_for_its_copy() -> None:
    manager = PagedKVCacheManager(num_blocks=2, block_size=4)
    manager.allocate("a", 6)
    manager.fork("a", "b")
    assert not manager.can_allocate(1, "b")
    assert manager.allocate("b", 1) is None
    manager.free("a")
    assert manager.allocate("b", 1) == [0, 1]
    manager.check_integrity()


def test_a_copy_whose_request_is_gone_releases_its_source() -> None:
    manager = PagedKVCacheManager(num_blocks=4, block_size=4)
    first = tokens(1, 2, 3, 4, 5, 6)
    admit(manager, "a", first)
    finish(manager, "a", first)
    ids = tokens(1, 2, 3, 4, 5, 6, 7)
    manager.admit("b", len(ids), manager.match_prefix(ids), DEFAULT_NAMESPACE)
    manager.free("b")
    assert manager.take_copies() == []
    assert manager.block_pool.get_num_free_blocks() == 4
    manager.check_integrity()


def test_truncate_gives_back_the_end() -> None:
    manager = PagedKVCacheManager(num_blocks=8, block_size=4)
    manager.allocate("a", 15)
    manager.truncate("a", 5)
    assert manager.get_block_table("a") == [0, 1]
    assert manager.allocate("a", 4) == [0, 1, 2]
    manager.check_integrity()


def test_without_prefix_caching_nothing_is_kept() -> None:
    manager = PagedKVCacheManager(num_blocks=8, block_size=4, enable_prefix_caching=False)
    ids = tokens(*range(9))
    assert admit(manager, "a", ids) == 0
    finish(manager, "a", ids)
    assert manager.block_pool.get_num_cached_blocks() == 0
    assert admit(manager, "b", ids) == 0


def test_a_namespace_without_blocks_is_forgotten() -> None:
    manager = PagedKVCacheManager(num_blocks=2, block_size=4)
    for number in range(100):
        ids = tokens(*range(8))
        admit(manager, "a", ids, Namespace(salt=str(number)))
        finish(manager, "a", ids)
    assert len(manager.block_pool.cache.roots()) == 1


@pytest.mark.parametrize("damage", ["ref_count", "num_held", "table"])
def test_check_integrity_notices_damage(damage: str) -> None:
    manager = PagedKVCacheManager(num_blocks=4, block_size=4)
    manager.allocate("a", 8)
    manager.check_integrity()
    if damage == "ref_count":
        manager.block_pool.blocks[0].ref_count += 1
    elif damage == "num_held":
        manager.block_pool.num_held += 1
    else:
        manager.get_block_table("a").blocks.pop()
    with pytest.raises(AssertionError):
        manager.check_integrity()


def test_a_pinned_prefix_outlives_pressure_and_can_be_dropped_by_name() -> None:
    manager = PagedKVCacheManager(num_blocks=4, block_size=4)
    ids = tokens(*range(8))
    admit(manager, "a", ids)
    pin = manager.pin("system", tokens(*range(6)), DEFAULT_NAMESPACE)
    assert (pin.num_tokens, [block.block_id for block in pin.blocks]) == (6, [0, 1])
    finish(manager, "a", ids)
    assert manager.allocate("b", 8) == [2, 3]
    assert manager.allocate("c", 1) is None
    assert manager.match_prefix(tokens(*range(8))).num_tokens == 7
    assert manager.evict("system") == 2
    assert manager.match_prefix(tokens(*range(8))).num_tokens == 0
    assert manager.allocate("c", 1) is not None
    manager.check_integrity()


def test_a_pin_expires() -> None:
    manager = PagedKVCacheManager(num_blocks=4, block_size=4)
    ids = tokens(*range(8))
    admit(manager, "a", ids)
    manager.pin("system", ids, DEFAULT_NAMESPACE, expires_s=10.0)
    finish(manager, "a", ids)
    manager.block_pool.now_s = 9.0
    manager.unpin_expired()
    assert manager.block_pool.num_held == 2
    manager.block_pool.now_s = 10.0
    manager.unpin_expired()
    assert manager.block_pool.num_held == 0
    manager.check_integrity()


def test_broken_accounts_are_rebuilt_from_the_block_tables() -> None:
    """Accounting drift: what the tables say is true, whatever the counts say."""
    manager = PagedKVCacheManager(num_blocks=8, block_size=4)
    ids = tokens(*range(9))
    admit(manager, "a", ids)
    admit(manager, "b", ids)
    assert manager.audit() is None
    manager.block_pool.num_held += 1
    assert "are not 8" in (manager.audit() or "")
    manager.block_pool.blocks[0].ref_count = 7
    manager.block_pool.free_queue.blank.pop()
    manager.rebuild()
    manager.check_integrity()
    assert [block.ref_count for block in manager.block_pool.blocks] == [2, 2, 1, 1, 0, 0, 0, 0]
    for name in "ab":
        manager.cache_blocks(name, ids, 9)
    assert admit(manager, "c", ids) == 8
    manager.check_integrity()
