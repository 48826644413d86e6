"""SIEVE: one queue in order of arrival, and a hand that spares once whatever was used since it last passed.

Zhang et al., "SIEVE is simpler than LRU", NSDI 2024. Added here: the hand passes blocks that are held or continued.
"""

from __future__ import annotations

from collections import OrderedDict

from octavo.kvcache.block import KVCacheBlock
from octavo.kvcache.policies.fifo import FifoPolicy


class SievePolicy(FifoPolicy):
    """A new block is not trusted: it must be used before the hand comes. ``evict`` is O(blocks) at worst.

    ::

        oldest ── passed by the hand ──┐     ┌── ahead of the hand ── newest
                  (order kept)         └hand─┘
    """

    def __init__(self) -> None:
        super().__init__(most_uses=1)
        self._ahead: OrderedDict[KVCacheBlock, None] = OrderedDict()
        self._passed: OrderedDict[KVCacheBlock, None] = OrderedDict()

    def enqueue(self, block: KVCacheBlock) -> None:
        """It becomes the newest."""
        self._ahead[block] = None

    def drop(self, block: KVCacheBlock) -> None:
        """Forget it."""
        super().drop(block)
        self._ahead.pop(block, None)
        self._passed.pop(block, None)

    def evict(self, num_blocks: int) -> list[KVCacheBlock]:
        """Move the hand to a leaf that was not used since the hand last passed it."""
        while True:
            if not self._ahead:
                self._ahead, self._passed = self._passed, self._ahead
            block, _ = self._ahead.popitem(last=False)
            if block in self.idle:
                if self.uses[block] == 0 and not block.children:
                    del self.idle[block], self.uses[block]
                    return [block]
                self.uses[block] = 0
            self._passed[block] = None

    def clear(self) -> None:
        """Forget all."""
        super().clear()
        self._ahead.clear()
        self._passed.clear()
