"""The paged KV cache manager: block tables of all requests over one pool.

A request's tokens and blocks, when it is admitted (block size 4, 14 tokens, the cache knows the first 10)::

    tokens    t0 t1 t2 t3│t4 t5 t6 t7│t8 t9 t10 t11│t12 t13
    prefix    ◄─ full blocks, shared ─►│copied│
    blocks    [ cached  ] [ cached  ] [ own, copied in part ] [ own ]
    compute                                   ◄── from num_cached_tokens ──►
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.kvcache import block_hash
from octavo.kvcache.block import KVCacheBlock
from octavo.kvcache.block_pool import BlockPool
from octavo.kvcache.block_table import BlockTable
from octavo.kvcache.eviction import EvictionPolicy, Turn
from octavo.kvcache.prefix_cache import TOKEN_BYTES
from octavo.namespace import DEFAULT_NAMESPACE, Namespace


@dataclass(slots=True)
class PrefixMatch:
    """What the prefix cache has of a prompt.

    Attributes:
        blocks: full blocks, to be shared.
        partial: a block that begins with the next tokens, to be copied.
        num_partial_tokens: how many of its tokens fit.
        num_tokens: tokens that need not be computed.
    """

    blocks: list[KVCacheBlock]
    partial: KVCacheBlock | None
    num_partial_tokens: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Pin:
    """A cached prefix that is held by a name.

    Attributes:
        num_tokens: how much of the prefix was cached when it was pinned.
        expires_s: seconds on the engine's clock; infinite for never.
    """

    name: str
    blocks: tuple[KVCacheBlock, ...]
    num_tokens: int
    namespace: Namespace
    expires_s: float


NO_MATCH = PrefixMatch([], None, 0, 0)
UNKNOWN_TURN = Turn()


class PagedKVCacheManager:
    """Gives each request exactly ``ceil(num_tokens / block_size)`` blocks, and shares equal prefixes.

    Attributes:
        block_pool: the blocks.
        enable_prefix_caching: whether finished work is found again.
        pins: prefixes held by name.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        policy: EvictionPolicy | None = None,
    ) -> None:
        self.block_pool = BlockPool(num_blocks, block_size, policy)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pins: dict[str, Pin] = {}
        self._tables: dict[str, BlockTable] = {}
        self._updates: dict[str, list[tuple[int, list[int]]]] = {}  # by request: first index, block ids
        self._copies: dict[KVCacheBlock, KVCacheBlock] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self.block_pool.num_blocks

    # ---- the lesson's four ---------------------------------------------------------------------------------

    def can_allocate(self, num_tokens: int, request_id: str | None = None) -> bool:
        """Whether ``num_tokens`` more tokens would fit, for a new request or for one that has blocks already."""
        table = self._tables.get(request_id) if request_id is not None else None
        return self._num_new_blocks(table, num_tokens) <= self.block_pool.get_num_free_blocks()

    def allocate(self, request_id: str, num_tokens: int) -> BlockTable | None:
        """Make room for ``num_tokens`` more tokens of a request; all or nothing.

        ::

            before   |■■■■|■■··|                 6 tokens, 2 blocks (block_size 4)
            after    |■■■■|■■□□|□□□·|            allocate(…, 5): 11 tokens, 3 blocks

        A last block that others share is copied first, for the new tokens are written into it.

        Returns:
            The request's block table, or ``None`` if the pool has too few blocks (nothing has changed then).
        """
        assert num_tokens >= 0, num_tokens
        table = self._tables.get(request_id)
        if self._num_new_blocks(table, num_tokens) > self.block_pool.get_num_free_blocks():
            return None
        if table is None:
            table = self._tables[request_id] = BlockTable()
        if num_tokens:
            self._copy_shared_tail(request_id, table)
        num_before = len(table)
        self._grow(table, num_tokens)
        if len(table) > num_before:
            self._note_update(request_id, num_before, table[num_before:])
        return table

    def extend(self, request_ids: Sequence[str]) -> int:
        """Make room for one more token of each request, in order, while the pool has blocks; how many got theirs.

        The same as :meth:`allocate` for each, but for a batch of requests whose last blocks are full, all blocks are
        taken at once.
        """
        tables = [self._tables[request_id] for request_id in request_ids]
        are_full = all(table.num_tokens % self.block_size == 0 for table in tables)
        if not are_full or len(tables) > self.block_pool.get_num_free_blocks():
            for num_done, request_id in enumerate(request_ids):
                if self.allocate(request_id, 1) is None:
                    return num_done
            return len(tables)
        blocks = self.block_pool.allocate_blocks(len(tables))
        for request_id, table, block in zip(request_ids, tables, blocks, strict=True):
            table.num_tokens += 1
            self._note_update(request_id, len(table.blocks), [block.block_id])
            table.blocks.append(block)
        return len(tables)

    def free(self, request_id: str, turn: Turn = UNKNOWN_TURN) -> None:
        """Give back all blocks of a request, the last first, so that the cache loses ends before beginnings.

        Args:
            turn: what the eviction policy may learn from.
        """
        table = self._tables.pop(request_id)
        self._updates.pop(request_id, None)
        pool, free_block = self.block_pool, self.block_pool.free_block
        self._undo_copies(table)
        if pool.policy.learns:
            pool.policy.end(request_id, table.blocks[: table.num_indexed], turn, pool.now_s)
        for block in reversed(table.blocks):
            free_block(block)

    def get_block_table(self, request_id: str) -> BlockTable:
        """The block ids of a request. Raises ``KeyError`` if it has none."""
        return self._tables[request_id]

    def request_ids(self) -> list[str]:
        """Who holds blocks."""
        return list(self._tables)

    # ---- sharing -------------------------------------------------------------------------------------------

    def match_prefix(self, token_ids: array[int], namespace: Namespace = DEFAULT_NAMESPACE) -> PrefixMatch:
        """The longest cached prefix of ``token_ids``; never all of them, for the last one's logits are wanted."""
        return self._match(token_ids[:-1], namespace) if self.enable_prefix_caching else NO_MATCH

    def admit(
        self,
        request_id: str,
        num_tokens: int,
        match: PrefixMatch,
        namespace: Namespace,
        token_ids: array[int] | None = None,
    ) -> int | None:
        """Give a new request its blocks: the match's full blocks shared, its partial block copied, the rest blank.

        Args:
            token_ids: its tokens so far, for an eviction policy that learns.

        Returns:
            Tokens that need not be computed (fewer than matched if the partial block could not be kept for the copy),
            or ``None`` if the pool has too few blocks (nothing has changed then).
        """
        assert request_id not in self._tables, request_id
        pool = self.block_pool
        num_new = -(-num_tokens // self.block_size) - len(match.blocks)
        num_free = pool.get_num_free_blocks() - sum(block.ref_count == 0 for block in match.blocks)
        if num_new > num_free:
            return None
        if token_ids is not None and pool.policy.learns and self.enable_prefix_caching:
            pool.policy.begin(request_id, self._hash_chain(token_ids, match, namespace), pool.now_s)
        table = self._tables[request_id] = BlockTable(namespace)
        for block in match.blocks:
            pool.hold_block(block)
            block.num_hits += 1
        table.blocks.extend(match.blocks)
        table.num_indexed = len(match.blocks)
        table.num_tokens = len(match.blocks) * self.block_size
        partial = match.partial
        keep_partial = partial is not None and num_new + (partial.ref_count == 0) <= num_free
        if partial is not None and keep_partial:
            pool.hold_block(partial)
            partial.num_hits += 1
        self._grow(table, num_tokens - table.num_tokens)
        if partial is not None and keep_partial:
            self._copies[table.blocks[len(match.blocks)]] = partial
            return match.num_tokens
        return match.num_tokens - match.num_partial_tokens

    def cache_blocks(self, request_id: str, token_ids: array[int], num_computed_tokens: int) -> None:
        """Enter the request's computed full blocks into the prefix cache.

        If an equal block is there already, the request takes that one into its table and gives its own back: equal
        prefixes have equal contents, bit for bit, so nothing changes but the memory in use. Every cached block
        therefore continues one that its holders hold, too.
        """
        table, pool, cache = self._tables[request_id], self.block_pool, self.block_pool.cache
        table.num_tokens = max(table.num_tokens, num_computed_tokens)
        if not self.enable_prefix_caching:
            return
        size, step, blocks = self.block_size, self.block_size * TOKEN_BYTES, table.blocks
        first, last = table.num_indexed, num_computed_tokens // size
        if first >= last:
            return
        hash_block, enter = block_hash.hash_block, cache.enter
        data = token_ids[first * size : last * size].tobytes()
        parent = blocks[first - 1] if first else cache.root(table.namespace)
        for index, start in zip(range(first, last), range(0, len(data), step), strict=True):
            tokens = data[start : start + step]
            own = blocks[index]
            parent = enter(own, parent, tokens, hash_block(parent.prefix_hash, tokens))
            if parent is not own:
                pool.hold_block(parent)
                blocks[index] = parent
                self._note_update(request_id, index, [parent.block_id])
                pool.free_block(own)
        table.num_indexed = last

    def cache_tail(self, request_id: str, token_ids: array[int], num_computed_tokens: int) -> None:
        """Before a request's blocks are freed: let others copy from its last, partly filled block, too."""
        self.cache_blocks(request_id, token_ids, num_computed_tokens)
        table, cache = self._tables[request_id], self.block_pool.cache
        self._undo_copies(table)
        index, num_tail = divmod(num_computed_tokens, self.block_size)
        if not self.enable_prefix_caching or num_tail == 0:
            return
        if table.blocks[index].ref_count > 1 or table.blocks[index].is_cached:
            return
        parent = table.blocks[index - 1] if index else cache.root(table.namespace)
        tokens = token_ids[index * self.block_size : num_computed_tokens].tobytes()
        _, shared = cache.find_longest(parent, tokens)
        if shared < num_tail:
            cache.enter_tail(table.blocks[index], parent, tokens)

    def fork(self, request_id: str, child_id: str) -> BlockTable:
        """A new request that shares every block of ``request_id``, also the last, partly filled one.

        Whoever writes into a shared last block first copies it (:meth:`allocate`).
        """
        parent = self._tables[request_id]
        assert child_id not in self._tables, child_id
        child = self._tables[child_id] = BlockTable(parent.namespace)
        for block in parent.blocks:
            self.block_pool.hold_block(block)
        child.blocks.extend(parent.blocks)
        child.num_tokens = parent.num_tokens
        child.num_indexed = parent.num_indexed
        if request_id in self._updates:  # the executor copies the parent's table as it knows it
            self._updates[child_id] = list(self._updates[request_id])
        return child

    def truncate(self, request_id: str, num_tokens: int) -> None:
        """Give back the blocks past the first ``num_tokens`` tokens."""
        table = self._tables[request_id]
        assert num_tokens <= table.num_tokens, (num_tokens, table.num_tokens)
        keep = -(-num_tokens // self.block_size)
        for block in reversed(table.blocks[keep:]):
            self.block_pool.free_block(block)
        del table.blocks[keep:]
        table.num_tokens = num_tokens
        table.num_indexed = min(table.num_indexed, keep)

    # ---- pins ------------------------------------------------------------------------------------------------

    @property
    def num_pinned_blocks(self) -> int:
        """Blocks that some pin holds."""
        return len({block for pin in self.pins.values() for block in pin.blocks}) if self.pins else 0

    def pin(self, name: str, token_ids: array[int], namespace: Namespace, expires_s: float = math.inf) -> Pin:
        """Hold what is cached of a prefix until :meth:`unpin`, or until ``expires_s`` on the engine's clock."""
        assert name not in self.pins, name
        match = self._match(token_ids, namespace)
        blocks = [*match.blocks, match.partial] if match.partial is not None else list(match.blocks)
        for block in blocks:
            self.block_pool.hold_block(block)
        self.pins[name] = Pin(name, tuple(blocks), match.num_tokens, namespace, expires_s)
        return self.pins[name]

    def unpin(self, name: str) -> None:
        """Let a pinned prefix go its way again. Raises ``KeyError`` if nothing is pinned by that name."""
        for block in reversed(self.pins.pop(name).blocks):
            self.block_pool.free_block(block)

    def evict(self, name: str) -> int:
        """Unpin a prefix and forget it, except for blocks that others hold or continue; returns how many went."""
        blocks = self.pins[name].blocks
        self.unpin(name)
        num_evicted = 0
        for block in reversed(blocks):
            if block.ref_count > 0 or block.children:
                break
            self.block_pool.drop_cached(block)
            num_evicted += 1
        return num_evicted

    def unpin_expired(self) -> None:
        """Let go of pins whose time is over, by the pool's clock."""
        for pin in [pin for pin in self.pins.values() if pin.expires_s <= self.block_pool.now_s]:
            self.unpin(pin.name)

    # ---- what the executor must be told ----------------------------------------------------------------------

    def take_updates(self) -> list[tuple[str, int, list[int]]]:
        """Changes of block tables since last asked: ``(request id, first index, block ids)``."""
        if not self._updates:
            return []
        updates = [(request_id, *change) for request_id, changes in self._updates.items() for change in changes]
        self._updates.clear()
        return updates

    def take_copies(self) -> list[tuple[int, int]]:
        """Block copies, ``(source, target)``, to make before the next forward pass."""
        if not self._copies:
            return []
        copies = [(source.block_id, target.block_id) for target, source in self._copies.items()]
        for source in self._copies.values():
            self.block_pool.free_block(source)
        self._copies.clear()
        return copies

    # ---- health ----------------------------------------------------------------------------------------------

    def audit(self) -> str | None:
        """An O(1) look at the accounts; returns what is wrong."""
        return self.block_pool.audit()

    def rebuild(self) -> None:
        """Heal broken accounts: count every reference anew from the block tables; cache and pins start empty."""
        self.pins.clear()
        self.block_pool.rebuild(self._count_references())
        for table in self._tables.values():
            table.num_indexed = 0

    def check_integrity(self) -> None:
        """Recount every reference from the block tables. O(num_blocks). Raises ``AssertionError`` with the numbers."""
        references = self._count_references()
        for request_id, table in self._tables.items():
            assert len(table.blocks) == -(-table.num_tokens // self.block_size), (request_id, table)
            assert len(set(table.blocks)) == len(table.blocks), (request_id, table)
            for index, block in enumerate(table.blocks[: table.num_indexed]):
                previous = table.blocks[index - 1] if index else self.block_pool.cache.find_root(table.namespace)
                assert block.parent is previous, (request_id, index, block)
        for block in self.block_pool.blocks:
            assert block.ref_count == references.get(block, 0), (block, references.get(block, 0))
        self.block_pool.check_integrity()

    # ---- parts -----------------------------------------------------------------------------------------------

    def _match(self, token_ids: array[int], namespace: Namespace) -> PrefixMatch:
        """The longest cached prefix, to the token."""
        parent = self.block_pool.cache.find_root(namespace)
        if parent is None:
            return NO_MATCH
        size, step = self.block_size, self.block_size * TOKEN_BYTES
        find, hash_block = self.block_pool.cache.find, block_hash.hash_block
        data = token_ids.tobytes()
        blocks: list[KVCacheBlock] = []
        for start in range(0, len(data) - step + 1, step):
            tokens = data[start : start + step]
            block = find(parent, tokens, hash_block(parent.prefix_hash, tokens))
            if block is None:
                break
            blocks.append(block)
            parent = block
        num_full = len(blocks) * size
        rest = data[num_full * TOKEN_BYTES : (num_full + size) * TOKEN_BYTES]
        partial, shared = self.block_pool.cache.find_longest(parent, rest)
        return PrefixMatch(blocks, partial, shared, num_full + shared)

    def _hash_chain(self, token_ids: array[int], match: PrefixMatch, namespace: Namespace) -> list[int]:
        """Prefix hashes of all full blocks of the tokens; the match knows the first ones."""
        chain = [block.prefix_hash for block in match.blocks]
        last = chain[-1] if chain else block_hash.hash_namespace(namespace)
        step = self.block_size * TOKEN_BYTES
        data = token_ids[len(chain) * self.block_size :].tobytes()
        for start in range(0, len(data) - step + 1, step):
            last = block_hash.hash_block(last, data[start : start + step])
            chain.append(last)
        return chain

    def _count_references(self) -> Counter[KVCacheBlock]:
        """How often each block is held by tables, pins and planned copies."""
        references: Counter[KVCacheBlock] = Counter(self._copies.values())
        for table in self._tables.values():
            references.update(table.blocks)
        for pin in self.pins.values():
            references.update(pin.blocks)
        return references

    def _num_new_blocks(self, table: BlockTable | None, num_tokens: int) -> int:
        if table is None:
            return -(-num_tokens // self.block_size)
        num_blocks = -(-(table.num_tokens + num_tokens) // self.block_size)
        return num_blocks - len(table.blocks) + (num_tokens > 0 and self._has_shared_tail(table))

    def _has_shared_tail(self, table: BlockTable) -> bool:
        return table.num_tokens % self.block_size != 0 and table.blocks[-1].ref_count > 1

    def _copy_shared_tail(self, request_id: str, table: BlockTable) -> None:
        if not self._has_shared_tail(table):
            return
        shared, own = table.blocks[-1], self.block_pool.allocate_block()
        assert own is not None
        self._copies[own] = shared  # the request's reference passes to the pending copy
        table.blocks[-1] = own
        self._note_update(request_id, len(table.blocks) - 1, [own.block_id])

    def _undo_copies(self, table: BlockTable) -> None:
        """Take back copies that were planned and not made: the request has the original again."""
        if not self._copies:
            return
        for index, block in enumerate(table.blocks):
            source = self._copies.pop(block, None)
            if source is not None:
                table.blocks[index] = source
                self.block_pool.free_block(block)

    def _grow(self, table: BlockTable, num_tokens: int) -> None:
        """Append blank blocks for ``num_tokens`` more tokens; the caller has checked that there are enough."""
        table.num_tokens += num_tokens
        num_more = -(-table.num_tokens // self.block_size) - len(table.blocks)
        if num_more:
            table.blocks += self.block_pool.allocate_blocks(num_more)

    def _note_update(self, request_id: str, index: int, block_ids: list[int]) -> None:
        if request_id in self._updates:
            self._updates[request_id].append((index, block_ids))
        else:
            self._updates[request_id] = [(index, block_ids)]
