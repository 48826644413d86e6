"""The memory's health as product code: looked at in every step, healed when it breaks, no reason to stop serving."""

from __future__ import annotations

import logging
from collections.abc import Callable

from octavo.kvcache.manager import PagedKVCacheManager

MAX_IDLE_SHARE = 0.01
"""Full audits take at most this share of the time."""

_logger = logging.getLogger(__name__)


class MemoryHealth:
    """Audits the KV cache manager: counts in each step, everything when idle.

    A breach is logged and counted, and the accounts are rebuilt from the block tables, which are what the executor
    reads; only the prefix cache starts empty.

    Attributes:
        num_breaches: so far.
        raise_on_breach: raise ``AssertionError`` instead of healing: for tests.
    """

    raise_on_breach = False

    def __init__(self, manager: PagedKVCacheManager, clock: Callable[[], float]) -> None:
        self.num_breaches = 0
        self._manager = manager
        self._clock = clock
        self._next_full_audit_s = 0.0

    def check_step(self) -> None:
        """O(1)."""
        problem = self._manager.audit()
        if problem is not None:
            self._breach(problem)

    def check_idle(self) -> None:
        """Everything, unless the last time was too recent for what it costs."""
        began = self._clock()
        if began < self._next_full_audit_s:
            return
        try:
            self._manager.check_integrity()
        except AssertionError as error:
            self._breach(str(error))
        ended = self._clock()
        self._next_full_audit_s = ended + (ended - began) / MAX_IDLE_SHARE

    def _breach(self, problem: str) -> None:
        if self.raise_on_breach:
            raise AssertionError(problem)
        self.num_breaches += 1
        _logger.error("KV cache accounts are broken, rebuilding them from the block tables: %s", problem)
        self._manager.rebuild()
