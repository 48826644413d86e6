"""Reuse: give up the cached block that promises the fewest hits per second of staying.

The policy sees requests as chains of block hashes (a hash names its whole prefix) and keeps a radix tree of segments:
runs of blocks with one history. When a request ends, each of its segments starts to age, under a profile of what is
known of it at that moment; nothing looks ahead. A segment that is used again, or outlives an age bin, teaches the
model (:mod:`octavo.kvcache.policies.reuse_model`). Given up is the last block of the leaf with the lowest index.

Segments that were evicted are remembered for a while (hashes and counters only) and go on ageing, so what is learned
does not depend on what was kept.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from octavo.kvcache.block import KVCacheBlock
from octavo.kvcache.eviction import Turn
from octavo.kvcache.policies.reuse_model import AGE_BINS, AGE_EDGES_S, HazardModel, Profile
from octavo.kvcache.policies.reuse_segments import Buckets, Segment, log2_class

REFRESH_EVERY = 32  # requests that have ended, between two refreshes of the model
LEARN_FROM = 16  # deepest segments of a chain that teach the model; bounds the learning per request
REMEMBERED = 64  # blocks whose hashes are kept, per block of the pool
FORGET_TRIES = 16  # evicted segments that are looked at per request when too many are remembered
FOLLOW_UP_TOKENS = 512  # a prompt that shares more than this with earlier ones continues one of them


@dataclass(slots=True)
class _Lease:
    """A running request's prompt: its hashes, and how many of its leading blocks were known when it began."""

    chain: list[int]
    num_known: int


class ReusePolicy:
    """Ranks the cached blocks of a pool of ``num_blocks`` blocks of ``block_size`` tokens.

    Cost: ``add``, ``remove`` and ``evict`` are O(1) (``evict`` amortised; O(levels) at worst). ``begin`` and ``end``
    are O(blocks of the request) plus at most 16 new observations, of which each is learned up to 35 times in its life,
    typically 6. That is about 0.6 ms of CPU time per finished request for chat (a few segments), and 2 ms for a coding
    agent's prompt (30 segments, 100,000 tokens). Nothing per step.

    Memory: 64 hashes for each block of the pool at most.

    Attributes:
        model: what was learned so far; survives :meth:`clear`.
        num_remembered: blocks in the tree of segments, cached or not.
    """

    learns = True

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self.model = HazardModel()
        self._num_ended = 0
        self.clear()

    def clear(self) -> None:
        """Forget all blocks and their history, but not what it taught."""
        self.num_remembered = 0
        self._by_first_hash: dict[int, Segment] = {}
        self._segment_of: dict[KVCacheBlock, Segment] = {}  # cached blocks
        self._num_idle = 0  # of these, how many nobody holds
        self._leases: dict[str, _Lease] = {}
        self._wheel: list[OrderedDict[Segment, None]] = [OrderedDict() for _ in range(AGE_BINS)]  # by age, oldest first
        self._next_move_s = -math.inf  # before then, nothing on the wheel reaches its next bin
        self._buckets = Buckets()
        self._ghosts: OrderedDict[Segment, None] = OrderedDict()  # wholly evicted, in the order of eviction

    # ---- requests --------------------------------------------------------------------------------------------

    def begin(self, request_id: str, chain: Sequence[int], now_s: float) -> None:
        """Every known segment of the prompt is used now, cached or not."""
        self._advance(now_s)
        chain = _without_repeats(list(chain))
        path = self._walk(chain)
        lease = _Lease(chain, sum(len(segment.hashes) for segment in path))
        since_s = now_s - path[-1].last_use_s if path else None
        for segment in path:
            if not segment.pins:
                self._note_reuse(segment, now_s)
        if lease.num_known < len(chain):
            follows = self._follows(lease.num_known)
            path.append(self._grow(path, chain[lease.num_known :], since_s if follows else None))
        for segment in path:
            segment.pins += 1
        self._leases[request_id] = lease

    def end(self, request_id: str, blocks: Sequence[KVCacheBlock], turn: Turn, now_s: float) -> None:
        """Its segments start to age; the blocks themselves come back through ``add``."""
        self._advance(now_s)
        chain = _without_repeats([block.prefix_hash for block in blocks])
        lease = self._leases.pop(request_id, None)
        if lease is not None:
            for segment in self._walk(lease.chain):
                segment.pins -= 1
        path = self._walk(chain)
        depth = sum(len(segment.hashes) for segment in path)
        if lease is None:
            lease = _Lease(chain, depth)
        if depth < len(chain):
            path.append(self._grow(path, chain[depth:], path[-1].interval_s if path else None))
        self._note_cached(path, blocks)
        observed = set(path[-LEARN_FROM:])
        num_new_tokens = (len(chain) - lease.num_known) * self._block_size
        for segment in dict.fromkeys(self._walk(lease.chain) + path):
            if segment.profile is None or not segment.pins:
                segment.profile = self._profile(segment, self._follows(lease.num_known), num_new_tokens, turn)
            if not segment.pins:
                self._start_ageing(segment, now_s, 1.0 if segment in observed else 0.0)
                if not segment.cached:
                    self._ghosts[segment] = None
        self._num_ended += 1
        if self._num_ended % REFRESH_EVERY == 0:
            self.model.refresh()
        self._forget()

    # ---- blocks ----------------------------------------------------------------------------------------------

    def add(self, block: KVCacheBlock) -> None:
        """The block may go as soon as nothing cached continues it."""
        self._num_idle += 1
        segment = self._segment_of.get(block) or self._adopt(block)
        if segment.cached[-1] is block and not block.children:
            self._rank(segment)

    def remove(self, block: KVCacheBlock) -> None:
        """The block must stay."""
        self._num_idle -= 1
        segment = self._segment_of[block]
        if segment.cached[-1] is block:
            self._buckets.take(segment)

    def drop(self, block: KVCacheBlock) -> None:
        """Forget the block; its hash is remembered like that of an evicted one."""
        self._give_up(self._segment_of[block], 1)

    def evict(self, num_blocks: int) -> list[KVCacheBlock]:
        """The last blocks of the leaf that promises least."""
        while True:
            segment = self._buckets.lowest()
            level = segment.level
            assert level is not None
            if self._level(segment) <= level:
                return self._give_up(segment, num_blocks)
            self._rank(segment)  # the indices were refreshed since

    def __len__(self) -> int:
        return self._num_idle

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return (block for block in self._segment_of if block.ref_count == 0)

    # ---- ranking ---------------------------------------------------------------------------------------------

    def _level(self, segment: Segment) -> int:
        assert segment.profile is not None, segment
        return self.model.level(segment.profile, segment.age_bin)

    def _rank(self, segment: Segment) -> None:
        self._buckets.put(segment, self._level(segment))

    def _give_up(self, segment: Segment, num_blocks: int) -> list[KVCacheBlock]:
        """Take so many blocks out at most, from the last one to where another prefix branches off or somebody holds."""
        cached, segment_of = segment.cached, self._segment_of
        blocks: list[KVCacheBlock] = []
        while True:
            block = cached.pop()
            del segment_of[block]
            blocks.append(block)
            parent = block.parent
            assert parent is not None, block
            is_leaf = parent.ref_count == 0 and len(parent.children) == 1
            if not (is_leaf and cached and len(blocks) < num_blocks):
                break
        self._num_idle -= len(blocks)
        if not cached:
            self._buckets.take(segment)
            if segment.hashes:
                self._ghosts[segment] = None
            else:
                self._wheel[segment.age_bin].pop(segment, None)
        if cached and not is_leaf:
            self._buckets.take(segment)
        elif is_leaf and parent.parent is not None and self._segment_of[parent].level is None:
            self._rank(self._segment_of[parent])
        return blocks

    def _profile(self, segment: Segment, follows: bool, num_new_tokens: int, turn: Turn) -> Profile:
        """What is known of a segment when it was last used; all numbers in classes of powers of two."""
        hits = segment.hits if segment.hits < 4 else min(8, 1 + log2_class(segment.hits))
        new, out = log2_class(num_new_tokens), log2_class(turn.num_output_tokens)
        pace = None if segment.interval_s is None else log2_class(segment.interval_s + 1.0)
        return self.model.profile(
            (
                ("hits", hits),
                ("new", follows, new),
                ("out", out),
                ("pace", pace),
                ("turn", turn.ending),
                ("shape", min(hits, 3), min(segment.forks, 3), follows, new),
                ("answer", min(hits, 3), follows, out, turn.ending),
                ("rhythm", min(hits, 2), pace),
                ("length", log2_class(len(segment.hashes) * self._block_size)),
            )
        )

    def _follows(self, num_known: int) -> bool:
        return num_known * self._block_size > FOLLOW_UP_TOKENS

    # ---- ageing ----------------------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> None:
        """Move segments on to the age bins they have reached; each bin that one leaves unused is an observation."""
        if now_s < self._next_move_s:
            return
        self._next_move_s = math.inf
        for first in range(AGE_BINS - 2, -1, -1):
            waiting = self._wheel[first]
            while waiting:
                segment = next(iter(waiting))
                leaves_s = segment.last_use_s + AGE_EDGES_S[first + 1]
                if leaves_s > now_s:
                    self._next_move_s = min(self._next_move_s, leaves_s)
                    break
                del waiting[segment]
                assert segment.profile is not None, segment
                reached = first
                while reached < AGE_BINS - 1 and segment.last_use_s + AGE_EDGES_S[reached + 1] <= now_s:
                    if segment.weight:
                        self.model.leave(segment.profile, reached, segment.weight, reused=False)
                        self.model.enter(segment.profile, reached + 1, segment.weight)
                    reached += 1
                segment.age_bin = reached
                self._wait(segment)
                if segment.level is not None:
                    self._rank(segment)

    def _wait(self, segment: Segment) -> None:
        """Until it reaches its next age bin."""
        self._wheel[segment.age_bin][segment] = None
        if segment.age_bin < AGE_BINS - 1:
            self._next_move_s = min(self._next_move_s, segment.last_use_s + AGE_EDGES_S[segment.age_bin + 1])

    def _start_ageing(self, segment: Segment, now_s: float, weight: float) -> None:
        self._wheel[segment.age_bin].pop(segment, None)
        segment.last_use_s, segment.weight, segment.age_bin = now_s, weight, 0
        self._wait(segment)
        assert segment.profile is not None, segment
        if weight:
            self.model.enter(segment.profile, 0, weight)
        if segment.level is not None:
            self._rank(segment)

    def _note_reuse(self, segment: Segment, now_s: float) -> None:
        if segment.profile is not None and segment.weight:
            self.model.leave(segment.profile, segment.age_bin, segment.weight, reused=True)
        self._wheel[segment.age_bin].pop(segment, None)
        segment.hits += 1
        segment.interval_s = now_s - segment.last_use_s

    # ---- the tree --------------------------------------------------------------------------------------------

    def _walk(self, chain: list[int]) -> list[Segment]:
        """Segments of the known prefix of a chain, the first one first; one that the chain leaves is split there."""
        path: list[Segment] = []
        at = 0
        while at < len(chain) and (segment := self._by_first_hash.get(chain[at])) is not None:
            ahead = chain[at : at + len(segment.hashes)]
            shared = len(segment.hashes)
            if ahead != segment.hashes:
                differ = (i for i, (ours, its) in enumerate(zip(ahead, segment.hashes, strict=False)) if ours != its)
                shared = next(differ, len(ahead))
                segment = self._split(segment, shared)
            path.append(segment)
            at += shared
        return path

    def _grow(self, path: list[Segment], hashes: list[int], interval_s: float | None) -> Segment:
        parent = path[-1] if path else None
        segment = Segment(parent, hashes, [], interval_s=interval_s)
        self._by_first_hash[hashes[0]] = segment
        self.num_remembered += len(hashes)
        if parent is not None:
            parent.children += 1
            parent.forks += 1
        return segment

    def _split(self, lower: Segment, count: int) -> Segment:
        """The upper part is about to be used, so it need not wait on the wheel; the lower part stays there."""
        was_cached, was_ranked = bool(lower.cached), lower.level is not None
        self._buckets.take(lower)
        upper = lower.cut(count)
        self._by_first_hash[upper.hashes[0]], self._by_first_hash[lower.hashes[0]] = upper, lower
        for block in upper.cached:
            self._segment_of[block] = upper
        if was_ranked:
            self._rank(lower if lower.cached else upper)
        if was_cached and not lower.cached:
            self._ghosts[lower] = None
        elif not was_cached:
            self._ghosts[upper] = None
        return upper

    def _note_cached(self, path: list[Segment], blocks: Sequence[KVCacheBlock]) -> None:
        """All these blocks are in the prefix cache and held, one for each hash of the path."""
        start = 0
        for segment in path:
            for block in blocks[start + len(segment.cached) : start + len(segment.hashes)]:
                if segment.cached and block.parent is not segment.cached[-1]:
                    break  # another prefix has the same hash: what follows stays loose
                owner = self._segment_of.get(block)
                if owner is not None and owner.hashes:
                    break
                if owner is not None:  # it was loose
                    self._wheel[owner.age_bin].pop(owner, None)
                segment.cached.append(block)
                self._segment_of[block] = segment
            if segment.cached:
                self._ghosts.pop(segment, None)
            start += len(segment.hashes)

    def _adopt(self, block: KVCacheBlock) -> Segment:
        """A block that is in no chain, such as a partly filled tail, is ranked with its parent's profile and age."""
        parent = None if block.parent is None else self._segment_of.get(block.parent)
        segment = Segment(None, [], [block], weight=0.0)
        if parent is None or parent.profile is None:
            segment.profile = self._profile(segment, False, 0, Turn())
        else:
            segment.profile, segment.last_use_s, segment.age_bin = parent.profile, parent.last_use_s, parent.age_bin
        self._wait(segment)
        self._segment_of[block] = segment
        return segment

    def _forget(self) -> None:
        """Drop the longest-evicted segments beyond the bound; those that others continue wait until these are gone."""
        for _ in range(FORGET_TRIES):
            if self.num_remembered <= REMEMBERED * self._num_blocks or not self._ghosts:
                break
            segment = next(iter(self._ghosts))
            if segment.children or segment.pins:
                self._ghosts.move_to_end(segment)
                continue
            del self._ghosts[segment]
            if self._by_first_hash.get(segment.hashes[0]) is segment:  # else a chain of equal hashes took its place
                del self._by_first_hash[segment.hashes[0]]
            self._wheel[segment.age_bin].pop(segment, None)
            self.num_remembered -= len(segment.hashes)
            if segment.parent is not None:
                segment.parent.children -= 1


def _without_repeats(chain: list[int]) -> list[int]:
    """Hashes of 64 bits may collide. What follows within one chain is left out; other collisions only mislead."""
    if len(set(chain)) == len(chain):
        return chain
    seen: set[int] = set()
    for at, each in enumerate(chain):
        if each in seen:
            return chain[:at]
        seen.add(each)
    return chain
