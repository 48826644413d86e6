"""Requests that wait, in the order in which they shall run.

More urgent priorities go first. Within one priority, tenants share fairly: the tenant that was served least goes next,
and of one tenant the earliest request. Service is counted in weighted tokens by a virtual counter for each tenant (the
Virtual Token Counter of "Fairness in Serving Large Language Models", Sheng et al., OSDI 2024). A tenant that comes back
after a pause starts at the least counter of those who stayed, so that nobody saves up service by being away.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from octavo.request import Request

PROMPT_TOKEN_WEIGHT = 1
OUTPUT_TOKEN_WEIGHT = 2
"""An output token costs a step of its own; the paper's weights."""

_Entry = tuple[int, int, Request]


class RequestQueue:
    """Waiting requests and the tenants' counters. With one tenant it is plain order of priority and arrival."""

    def __init__(self) -> None:
        self._waiting: dict[str, Request] = {}
        self._heaps: dict[str, list[_Entry]] = {}  # by tenant, of those who have somebody waiting
        self._served: dict[str, int] = {}  # by tenant, of those who have somebody waiting or running
        self._num_requests: dict[str, int] = {}  # by tenant, waiting or running

    def arrive(self, request: Request) -> None:
        """A new request: its tenant is present until it departs."""
        tenant = request.tenant
        if tenant not in self._served:
            self._served[tenant] = min(self._served.values(), default=0)
            self._num_requests[tenant] = 0
        self._num_requests[tenant] += 1
        self.push(request)

    def depart(self, request: Request) -> None:
        """The request has ended."""
        self._num_requests[request.tenant] -= 1
        if self._num_requests[request.tenant] == 0:
            del self._num_requests[request.tenant], self._served[request.tenant]

    def charge(self, request: Request) -> None:
        """Count what the request has been served since it was last charged."""
        computed = request.num_computed_tokens
        num_prompt = min(computed, request.num_prompt_tokens)
        served = PROMPT_TOKEN_WEIGHT * num_prompt + OUTPUT_TOKEN_WEIGHT * (computed - num_prompt)
        self._served[request.tenant] += max(served - request.charged, 0)
        request.charged = max(served, request.charged)

    def push(self, request: Request) -> None:
        """Line up at the place that priority, tenant and arrival give. A preempted request keeps its arrival."""
        self._waiting[request.request_id] = request
        heap = self._heaps.setdefault(request.tenant, [])
        heapq.heappush(heap, (request.priority, request.arrival, request))

    def peek(self) -> Request:
        """The next one. Raises ``IndexError`` when none waits."""
        if len(self._heaps) == 1:
            return next(iter(self._heaps.values()))[0][2]
        heads = (heap[0] for heap in self._heaps.values())
        best = min(heads, key=lambda head: (head[0], self._served[head[2].tenant], head[1]), default=None)
        if best is None:
            raise IndexError("no request waits")
        return best[2]

    def pop(self) -> Request:
        """Take the next one out. Raises ``IndexError`` when none waits."""
        request = self.peek()
        self.remove(request.request_id)
        return request

    def remove(self, request_id: str) -> Request | None:
        """Take a request out, wherever it stands. ``None``: it does not wait."""
        request = self._waiting.pop(request_id, None)
        if request is not None:
            self._clean(request.tenant)
        return request

    def served(self, tenant: str) -> int:
        """Weighted tokens counted for a tenant that is present."""
        return self._served[tenant]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting.values())

    def _clean(self, tenant: str) -> None:
        """Drop entries of requests that have left from the top of a tenant's heap."""
        heap = self._heaps[tenant]
        while heap and self._waiting.get(heap[0][2].request_id) is not heap[0][2]:
            heapq.heappop(heap)
        if not heap:
            del self._heaps[tenant]
