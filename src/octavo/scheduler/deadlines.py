"""When to give up on whom."""

from __future__ import annotations

import heapq

from octavo.request import Request, RequestStatus


class Deadlines:
    """The earliest deadline is looked at in each step; nothing is touched per request."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, bool, Request]] = []
        self._compact_at = 1024

    def add(self, request: Request, at_s: float, *, to_start: bool) -> None:
        """``request`` has to have started, or to have finished, by ``at_s``."""
        heapq.heappush(self._heap, (at_s, request.arrival, to_start, request))
        if len(self._heap) > self._compact_at:
            self._heap = [entry for entry in self._heap if entry[3].status is not RequestStatus.FINISHED]
            heapq.heapify(self._heap)
            self._compact_at = max(1024, 2 * len(self._heap))

    def take_expired(self, now_s: float) -> list[Request]:
        """Requests whose deadline has passed, each once."""
        expired: dict[str, Request] = {}
        while self._heap and self._heap[0][0] <= now_s:
            _, _, to_start, request = heapq.heappop(self._heap)
            is_met = request.first_scheduled_s is not None if to_start else False
            if request.status is not RequestStatus.FINISHED and not is_met:
                expired[request.request_id] = request
        return list(expired.values())

    def __bool__(self) -> bool:
        return bool(self._heap)
