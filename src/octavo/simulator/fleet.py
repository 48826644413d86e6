"""Several replicas behind a router, through a whole workload."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable

from octavo.errors import RequestTooLargeError
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.simulator.cost_model import CostModel
from octavo.simulator.recorder import Recorder, ServiceLevel
from octavo.simulator.replica import Replica, ReplicaConfig
from octavo.simulator.router import Router
from octavo.simulator.workload import WorkloadRequest


class Fleet:
    """Equal replicas.

    Replicas run in any order between two arrivals, for they share nothing; before a request is routed, the router has
    heard of every first and last token before its arrival, and of nothing later.

    Attributes:
        recorder: what happened.
    """

    def __init__(
        self,
        num_replicas: int,
        config: ReplicaConfig,
        cost: CostModel,
        router: Router,
        service_level: ServiceLevel,
        *,
        leaps: bool = True,
    ) -> None:
        self.config = config
        self.recorder = Recorder(service_level)
        self.replicas = [
            Replica(index, config, cost, self.recorder, self._note, leaps=leaps) for index in range(num_replicas)
        ]
        self._router = router
        self._news: list[tuple[float, int, bool, str]] = []  # a heap: when, which replica, whether the end, whose
        self._in_flight: dict[str, WorkloadRequest] = {}
        self._params: dict[int, SamplingParams] = {}  # by number of output tokens: making them costs more than a step

    def run(
        self,
        workload: Iterable[WorkloadRequest],
        on_arrival: Callable[[], None] = lambda: None,
        max_missed: float = math.inf,
    ) -> None:
        """Serve the workload to its end.

        Args:
            on_arrival: called for each request, for progress bars.
            max_missed: give up as soon as more requests than this were refused or worse than the service level.
        """
        for request in workload:
            self._advance(request.arrival_s)
            if self.recorder.num_missed + len(self.recorder.refused) > max_missed:
                return
            self._route(request)
            on_arrival()
        self._advance(math.inf)

    def _advance(self, time_s: float) -> None:
        """Let every replica take the steps that start before ``time_s``; tell the router what it heard before."""
        for replica in self.replicas:
            if replica.next_event_s < time_s:
                replica.run_until(time_s)
        news = self._news
        while news and news[0][0] <= time_s:
            _, index, is_end, request_id = heapq.heappop(news)
            if is_end:
                self._router.finished(self._in_flight.pop(request_id), index)
            else:
                self._router.started(self._in_flight[request_id], index)

    def _route(self, request: WorkloadRequest) -> None:
        index = self._router.choose(request)
        self._in_flight[request.request_id] = request
        try:
            self.replicas[index].add(self._engine_request(request))
        except RequestTooLargeError:
            self.recorder.refused.append(request.request_id)
            self._router.finished(self._in_flight.pop(request.request_id), index)

    def _engine_request(self, request: WorkloadRequest) -> Request:
        params = self._params.get(request.num_output_tokens)
        if params is None:
            params = SamplingParams(max_tokens=request.num_output_tokens, ignore_eos=True)
            self._params[request.num_output_tokens] = params
        return Request(
            request.request_id,
            request.stand_in_token_ids(),
            params,
            seed=request.output_id,
            arrival_s=request.arrival_s,
        )

    def _note(self, now_s: float, index: int, is_end: bool, request_id: str) -> None:
        heapq.heappush(self._news, (now_s, index, is_end, request_id))
