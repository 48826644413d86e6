"""What the KV cache says of itself."""

from __future__ import annotations

import math
from array import array

from octavo.kvcache.manager import NO_MATCH, PagedKVCacheManager
from octavo.kvcache.report import RequestMemory, memory_report
from octavo.namespace import DEFAULT_NAMESPACE


def test_every_block_is_told_once() -> None:
    manager = PagedKVCacheManager(12, 4)
    tokens = array("i", range(10))
    manager.admit("old", 10, NO_MATCH, DEFAULT_NAMESPACE)
    manager.cache_blocks("old", tokens, 8)
    manager.free("old")
    manager.block_pool.now_s = 30.0
    match = manager.match_prefix(tokens[:5])
    manager.admit("a", 5, match, DEFAULT_NAMESPACE)  # shares the first block with what is cached, owns another
    manager.take_copies()
    manager.fork("a", "b")
    manager.pin("kept", tokens[:4], DEFAULT_NAMESPACE)

    report = memory_report(manager, {"a": 5, "b": 5})
    assert (report.num_blank, report.num_cached, report.num_held) == (10 - 1, 1, 2)
    assert report.num_blank + report.num_cached + report.num_held == report.num_blocks == 12
    assert report.num_pinned == 1
    assert report.requests == [RequestMemory("a", 2, 2, 3), RequestMemory("b", 2, 2, 3)]
    assert report.cached_by_age == {1.0: 0, 10.0: 0, 60.0: 1, 600.0: 0, 3600.0: 0, math.inf: 0}
