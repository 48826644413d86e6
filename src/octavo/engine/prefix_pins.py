"""Control of the prefix cache by name: keep a prefix, drop it, see what is there."""

from __future__ import annotations

import math
import time
from array import array

from octavo.engine.input_processor import InputProcessor, Prompt
from octavo.errors import RequestError
from octavo.kvcache.manager import Pin
from octavo.kvcache.report import CachedPrefix, cached_prefixes
from octavo.namespace import Namespace
from octavo.scheduler.scheduler import Scheduler


class PrefixPins:
    """Pins live until they are unpinned, evicted or expired; a pinned block is never evicted."""

    def __init__(self, scheduler: Scheduler, input_processor: InputProcessor) -> None:
        self._scheduler = scheduler
        self._input_processor = input_processor

    def pin(self, name: str, prompt: Prompt, *, ttl_s: float = math.inf, cache_salt: str | None = None) -> Pin:
        """Keep what is cached of ``prompt`` now; compute it first (a request of one token) to keep all of it.

        Raises:
            RequestError: the name is in use, nothing of the prompt is cached, or too little would be left for requests.
        """
        token_ids = array("i", self._input_processor.token_ids(prompt))
        pin = self._scheduler.pin_prefix(name, token_ids, Namespace(salt=cache_salt), time.monotonic() + ttl_s)
        if pin.num_tokens == 0:
            self.unpin(name)
            raise RequestError(f"nothing of the prefix {name!r} is cached; run it once before pinning it")
        return pin

    def unpin(self, name: str) -> None:
        """Let a prefix be evicted when its turn comes."""
        self._known(name)
        self._scheduler.manager.unpin(name)

    def evict(self, name: str) -> int:
        """Drop a pinned prefix at once, but for blocks that others use or continue; returns how many blocks went."""
        self._known(name)
        return self._scheduler.manager.evict(name)

    def names(self) -> dict[str, Pin]:
        """What is pinned."""
        return dict(self._scheduler.manager.pins)

    def cached(self, limit: int = 1000) -> list[CachedPrefix]:
        """The cached prefixes, those with most hits first."""
        return cached_prefixes(self._scheduler.manager, limit)

    def _known(self, name: str) -> None:
        pins = self._scheduler.manager.pins
        if name not in pins:
            raise RequestError(f"no prefix is pinned as {name!r}; pinned are: {', '.join(sorted(pins)) or 'none'}")
