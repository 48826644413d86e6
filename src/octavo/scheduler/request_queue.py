"""Requests that wait, in the order in which they shall run."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from octavo.request import Request


class RequestQueue:
    """By priority, then by arrival. A preempted request keeps its place, so it comes back before later ones.

    Removal marks the entry; it leaves the heap when it comes to the top.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []
        self._waiting: dict[str, Request] = {}

    def push(self, request: Request) -> None:
        """Line up at the place that priority and arrival give."""
        self._waiting[request.request_id] = request
        heapq.heappush(self._heap, (request.priority, request.arrival, request))

    def peek(self) -> Request:
        """The next one. Raises ``IndexError`` when none waits."""
        while self._waiting.get(self._heap[0][2].request_id) is not self._heap[0][2]:
            heapq.heappop(self._heap)
        return self._heap[0][2]

    def pop(self) -> Request:
        """Take the next one out. Raises ``IndexError`` when none waits."""
        request = self.peek()
        heapq.heappop(self._heap)
        del self._waiting[request.request_id]
        return request

    def remove(self, request_id: str) -> Request | None:
        """Take a request out, wherever it stands. ``None``: it does not wait."""
        return self._waiting.pop(request_id, None)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting.values())
