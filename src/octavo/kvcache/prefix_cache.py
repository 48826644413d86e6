"""The tree of cached prefixes: which block holds the tokens that follow a given prefix.

::

    root (namespace)
     └─ [the quick brown fox]            a full block, found by its chained hash
         ├─ [jumps over the lazy]
         │   └─ [dog .]                  a partial tail: found only by comparing tokens
         └─ [jumps into the lake]        shares two tokens with its sibling: they are copied, not computed

The tree knows nothing of reference counts or free lists; the block pool owns those.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

from octavo.kvcache import block_hash
from octavo.kvcache.block import KVCacheBlock
from octavo.namespace import DEFAULT_NAMESPACE, Namespace

TOKEN_BYTES = 4
_tokens_of = attrgetter("tokens")


class PrefixCache:
    """Finds, inserts and removes blocks by their prefix.

    Attributes:
        num_blocks: blocks in the tree, held ones included.
    """

    def __init__(self) -> None:
        self._full: dict[int, KVCacheBlock] = {}
        self._roots: dict[Namespace, KVCacheBlock] = {}
        self._namespaces: dict[KVCacheBlock, Namespace] = {}
        self.num_blocks = 0

    def find_root(self, namespace: Namespace = DEFAULT_NAMESPACE) -> KVCacheBlock | None:
        """The empty prefix of a namespace; ``None``: nothing of it is cached."""
        return self._roots.get(namespace)

    def root(self, namespace: Namespace = DEFAULT_NAMESPACE) -> KVCacheBlock:
        """The empty prefix of a namespace, to insert its first block after."""
        root = self._roots.get(namespace)
        if root is None:
            root = KVCacheBlock(-1)
            root.prefix_hash = block_hash.hash_namespace(namespace)
            self._roots[namespace] = root
            self._namespaces[root] = namespace
        return root

    def find(self, parent: KVCacheBlock, tokens: bytes, prefix_hash: int) -> KVCacheBlock | None:
        """The full block that holds exactly ``tokens`` after ``parent``'s prefix."""
        block = self._full.get(prefix_hash)
        while block is not None and not (block.tokens == tokens and block.parent is parent):
            block = block.next_same_hash
        return block

    def find_longest(self, parent: KVCacheBlock, tokens: bytes) -> tuple[KVCacheBlock | None, int]:
        """The child of ``parent`` that begins most like ``tokens``, and how many tokens they share."""
        children = parent.children
        at = bisect_left(children, tokens, key=_tokens_of)
        best, most = None, 0
        for child in children[max(at - 1, 0) : at + 1]:
            shared = _common_tokens(child.tokens, tokens)
            if shared > most:
                best, most = child, shared
        return best, most

    def enter(self, block: KVCacheBlock, parent: KVCacheBlock, tokens: bytes, prefix_hash: int) -> KVCacheBlock:
        """Make a full block findable; if an equal one is there, return that instead and leave ``block`` alone."""
        first = known = self._full.get(prefix_hash)
        while known is not None:
            if known.tokens == tokens and known.parent is parent:
                return known
            known = known.next_same_hash
        block.prefix_hash = prefix_hash
        block.next_same_hash = first
        self._full[prefix_hash] = block
        self._add_child(block, parent, tokens)
        return block

    def enter_tail(self, block: KVCacheBlock, parent: KVCacheBlock, tokens: bytes) -> None:
        """Make a partly filled block findable, by :meth:`find_longest` only."""
        block.prefix_hash = parent.prefix_hash
        self._add_child(block, parent, tokens)

    def _add_child(self, block: KVCacheBlock, parent: KVCacheBlock, tokens: bytes) -> None:
        block.parent = parent
        block.tokens = tokens
        children = parent.children
        children.insert(bisect_left(children, tokens, key=_tokens_of) if children else 0, block)
        self.num_blocks += 1

    def remove(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Forget blocks; each has no children but those before it. A root without children is forgotten, too."""
        full = self._full
        for block in blocks:
            parent = block.parent
            assert parent is not None, block
            assert not block.children, block
            if block.next_same_hash is None and full.get(block.prefix_hash) is block:
                del full[block.prefix_hash]
            else:
                self._unlink(block)
            siblings = parent.children
            if len(siblings) == 1:
                siblings.clear()
                if parent in self._namespaces:
                    del self._roots[self._namespaces.pop(parent)]
            else:
                at = bisect_left(siblings, block.tokens, key=_tokens_of)
                while siblings[at] is not block:
                    at += 1
                del siblings[at]
            block.parent = None
            block.tokens = b""
            block.num_hits = 0
        self.num_blocks -= len(blocks)

    def _unlink(self, block: KVCacheBlock) -> None:
        """Take a block out of the list of its hash; a partial tail is in none."""
        first = self._full.get(block.prefix_hash)
        if first is block:
            if block.next_same_hash is None:
                del self._full[block.prefix_hash]
            else:
                self._full[block.prefix_hash] = block.next_same_hash
        else:
            while first is not None:
                if first.next_same_hash is block:
                    first.next_same_hash = block.next_same_hash
                    break
                first = first.next_same_hash
        block.next_same_hash = None

    def roots(self) -> dict[Namespace, KVCacheBlock]:
        """The tree's roots by namespace (a view for reports and audits; do not change it)."""
        return self._roots

    def check_integrity(self, block_size: int) -> None:
        """Walk the tree and compare it with the hash index. Raises ``AssertionError`` with the numbers."""
        reached, num_full = 0, 0
        pending = list(self._roots.values())
        while pending:
            parent = pending.pop()
            keys = [child.tokens for child in parent.children]
            assert keys == sorted(keys), f"children of {parent} are not sorted"
            for child in parent.children:
                assert child.parent is parent, (child, parent)
                assert 0 < len(child.tokens) <= block_size * TOKEN_BYTES, child
                if len(child.tokens) == block_size * TOKEN_BYTES:
                    num_full += 1
                    assert child.prefix_hash == block_hash.hash_block(parent.prefix_hash, child.tokens), child
                    assert self.find(parent, child.tokens, child.prefix_hash) is child, child
                else:
                    assert not child.children, f"partial {child} has children"
            reached += len(parent.children)
            pending.extend(parent.children)
        assert reached == self.num_blocks, (reached, self.num_blocks)
        num_indexed = 0
        for first in self._full.values():
            block: KVCacheBlock | None = first
            while block is not None:
                num_indexed += 1
                block = block.next_same_hash
        assert num_indexed == num_full, (num_indexed, num_full)


def _common_tokens(a: bytes, b: bytes) -> int:
    """How many tokens two token strings share at their beginning."""
    if a[:TOKEN_BYTES] != b[:TOKEN_BYTES]:
        return 0
    low, high = 0, min(len(a), len(b)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if a[: middle * TOKEN_BYTES] == b[: middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
