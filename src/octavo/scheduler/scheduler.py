"""Continuous batching under a token budget: who computes what in the next step.

One rule instead of phases: each request computes some of the tokens whose KV it lacks. In a step

1. decodes come first: running requests that lack one token each; they always fit the budget;
2. then running requests that lack more, in chunks, in order of arrival;
3. then waiting requests, while the budget, the slots and the blocks last.

A request gets the blocks for all tokens it has so far when it is admitted, so only decodes ask for blocks later, one
each time they fill the last. If the pool is out of blocks, the least urgent, latest request is preempted: its blocks go
to the prefix cache, it waits at its old place in the queue, and computes again what the cache has lost meanwhile.

Why nothing waits forever: what could never fit is refused in :meth:`Scheduler.add_request`; the most urgent, earliest
request is never preempted for another, so it finishes, and then the next one is that request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from octavo.config import SchedulerConfig
from octavo.errors import RequestError, RequestTooLargeError
from octavo.kvcache.manager import NO_MATCH, PagedKVCacheManager
from octavo.request import Request, RequestStatus
from octavo.scheduler.output import Admission, Chunk, ExecutorOutput, SchedulerOutput, StepOutput, TableUpdate
from octavo.scheduler.request_queue import RequestQueue
from octavo.scheduler.stats import SchedulerStats


class Scheduler:
    """Owns the order of requests; asks the manager for their blocks.

    Attributes:
        manager: the KV cache.
        waiting: requests without a slot.
        running: requests with a slot, by id.
        stats: what has happened so far.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        manager: PagedKVCacheManager,
        max_model_len: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.manager = manager
        self.max_model_len = max_model_len
        self.waiting = RequestQueue()
        self.running: dict[str, Request] = {}
        self.stats = SchedulerStats()
        self._clock = clock
        self._step = 0
        self._num_arrivals = 0
        self._free_slots = list(range(config.max_num_seqs))[::-1]
        self._decodes: list[Request] = []  # lack one token; replaced, never changed, when one joins or leaves
        self._prefills: list[Request] = []  # lack more, by arrival
        self._full: list[Request] = []  # decodes whose next token needs a new block

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.running) or len(self.waiting) > 0

    # ---- requests come and go ------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Take in a request. Raises :class:`RequestTooLargeError` at once if it could never fit."""
        if request.request_id in self.running or request.request_id in self.waiting:
            raise RequestError(f"request id {request.request_id!r} is in use; choose another")
        num_prompt = request.num_prompt_tokens
        if num_prompt == 0:
            raise RequestError("the prompt is empty; give at least one token")
        num_pool_tokens = self.manager.num_blocks * self.manager.block_size
        if num_prompt + 1 > self.max_model_len:
            raise RequestTooLargeError(
                f"the prompt has {num_prompt} tokens and the model's limit is {self.max_model_len} for prompt and "
                f"output together; shorten the prompt by {num_prompt + 1 - self.max_model_len} or raise max_model_len"
            )
        if num_prompt + 1 > num_pool_tokens:
            raise RequestTooLargeError(
                f"the prompt has {num_prompt} tokens and the KV cache holds {num_pool_tokens} "
                f"({self.manager.num_blocks} blocks of {self.manager.block_size}); shorten the prompt by "
                f"{num_prompt + 1 - num_pool_tokens} or raise num_blocks"
            )
        limit = min(self.max_model_len, num_pool_tokens)
        if request.params.max_tokens is not None:
            limit = min(limit, num_prompt + request.params.max_tokens)
        request.max_tokens = limit
        request.arrival = self._num_arrivals
        self._num_arrivals += 1
        self.waiting.push(request)

    def finish_request(self, request_id: str, reason: str) -> Request | None:
        """End a request from outside, wherever it is; its work stays in the prefix cache. ``None``: unknown id."""
        request = self.running.get(request_id)
        if request is not None:
            self._end(request, reason)
            self._rebuild_decodes()
            return request
        request = self.waiting.remove(request_id)
        if request is not None:
            request.status, request.finish_reason = RequestStatus.FINISHED, reason
            self.stats.num_finished += 1
        return request

    # ---- one step --------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Choose what the next step computes."""
        self._step += 1
        output = SchedulerOutput(self._step, self._decodes)
        self._grow_full_tables(output)
        budget = self.config.max_num_batched_tokens - len(output.decodes)
        budget = self._continue_prefills(output, budget)
        if not output.preempted:
            self._admit_waiting(output, budget)
        output.block_copies = self.manager.take_copies()
        for request_id, index, block_ids in self.manager.take_updates():
            output.table_updates.append(TableUpdate(self.running[request_id].slot, index, block_ids))
        assert output.decodes or output.chunks or not self.has_unfinished_requests, "requests wait and nothing runs"
        return output

    def update(self, output: SchedulerOutput, result: ExecutorOutput) -> StepOutput:
        """Take in what the step computed: append tokens, cache full blocks, end what is complete."""
        finished: list[Request] = []
        num_decodes = len(output.decodes)
        for request, token_id in zip(output.decodes, result.token_ids, strict=False):
            request.num_computed_tokens += 1
            token_ids = request.token_ids
            token_ids.append(token_id)
            if len(token_ids) >= request.attention_at or token_id in request.stop_ids:
                self._attend(request, token_id, finished)
        joined = self._update_chunks(output.chunks, result.token_ids[num_decodes:], finished)
        requests = output.sampling_requests
        if joined or finished:
            self._rebuild_decodes(joined)
        self.stats.num_steps += 1
        self.stats.num_computed_tokens += output.num_tokens
        return StepOutput(requests, result.token_ids, finished, result)

    # ---- parts of schedule -----------------------------------------------------------------------------------

    def _grow_full_tables(self, output: SchedulerOutput) -> None:
        """Give a block to each decode that filled its last one, preempting the least urgent where there is none."""
        full, self._full = self._full, []
        for request in sorted(full, key=_urgency):
            while request.status is RequestStatus.RUNNING:
                table = self.manager.get_block_table(request.request_id)
                if self.manager.allocate(request.request_id, request.num_tokens - table.num_tokens) is not None:
                    self._plan_attention(request, len(table))
                    break
                self._preempt(max(self.running.values(), key=_urgency), output)
        if output.preempted:
            self._rebuild_decodes()
            output.decodes = self._decodes

    def _continue_prefills(self, output: SchedulerOutput, budget: int) -> int:
        for request in self._prefills:
            if budget == 0:
                break
            budget -= self._schedule_chunk(request, output, budget)
        return budget

    def _admit_waiting(self, output: SchedulerOutput, budget: int) -> None:
        while len(self.waiting) > 0 and budget > 0 and self._free_slots:
            request = self.waiting.peek()
            match = NO_MATCH
            if request.reuses_prefix:
                match = self.manager.match_prefix(request.token_ids, request.namespace)
            num_cached = self.manager.admit(request.request_id, request.num_tokens, match, request.namespace)
            if num_cached is None:
                break
            self.waiting.pop()
            self._start(request, num_cached, output)
            budget -= self._schedule_chunk(request, output, budget)

    def _schedule_chunk(self, request: Request, output: SchedulerOutput, budget: int) -> int:
        start, num_missing = request.num_computed_tokens, request.num_tokens - request.num_computed_tokens
        num_tokens = min(num_missing, budget)
        output.chunks.append(Chunk(request, start, num_tokens, samples=num_tokens == num_missing))
        return num_tokens

    # ---- parts of update -------------------------------------------------------------------------------------

    def _update_chunks(self, chunks: list[Chunk], token_ids: Sequence[int], finished: list[Request]) -> list[Request]:
        """Returns the requests that have caught up and decode from now on."""
        joined: list[Request] = []
        tokens = iter(token_ids)
        for chunk in chunks:
            request = chunk.request
            request.num_computed_tokens += chunk.num_tokens
            self.manager.cache_blocks(request.request_id, request.token_ids, request.num_computed_tokens)
            if chunk.samples:
                token_id = next(tokens)
                request.token_ids.append(token_id)
                self._prefills.remove(request)
                joined.append(request)
                if len(request.token_ids) >= request.attention_at or token_id in request.stop_ids:
                    self._attend(request, token_id, finished)
        return [request for request in joined if request.status is RequestStatus.RUNNING]

    def _attend(self, request: Request, token_id: int, finished: list[Request]) -> None:
        """A decode needs more than its token appended: it ends, or its last block is full."""
        if token_id in request.stop_ids:
            request.stop_token_id = token_id
            self._end(request, "stop")
            finished.append(request)
        elif request.num_tokens >= request.max_tokens:
            self._end(request, "length")
            finished.append(request)
        else:
            self.manager.cache_blocks(request.request_id, request.token_ids, request.num_computed_tokens)
            self._full.append(request)

    # ---- states of a request ---------------------------------------------------------------------------------

    def _start(self, request: Request, num_cached: int, output: SchedulerOutput) -> None:
        request.status = RequestStatus.RUNNING
        request.slot = self._free_slots.pop()
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = num_cached
            request.first_scheduled_s = self._clock()
            self.stats.num_cached_tokens += num_cached
            self.stats.num_prompt_tokens += request.num_prompt_tokens
        else:
            num_lost = max(request.num_computed_tokens - num_cached, 0)
            request.num_recomputed_tokens += num_lost
            self.stats.num_recomputed_tokens += num_lost
        request.num_computed_tokens = num_cached
        table = self.manager.get_block_table(request.request_id)
        self._plan_attention(request, len(table))
        self.running[request.request_id] = request
        self._prefills.append(request)
        output.admissions.append(Admission(request, request.slot, table[:], num_cached))

    def _plan_attention(self, request: Request, num_blocks: int) -> None:
        """Look at the request again when its last block is full or its last token is there."""
        request.attention_at = min(num_blocks * self.manager.block_size + 1, request.max_tokens)
        request.max_blocks = max(request.max_blocks, num_blocks)

    def _preempt(self, request: Request, output: SchedulerOutput) -> None:
        self._release(request)
        request.status = RequestStatus.WAITING
        request.num_preemptions += 1
        self.waiting.push(request)
        output.preempted.append(request)
        self.stats.num_preemptions += 1

    def _end(self, request: Request, reason: str) -> None:
        self._release(request)
        request.status, request.finish_reason = RequestStatus.FINISHED, reason
        self.stats.num_finished += 1

    def _release(self, request: Request) -> None:
        """Take slot and blocks away; what was computed stays findable."""
        self.manager.cache_tail(request.request_id, request.token_ids, request.num_computed_tokens)
        self.manager.free(request.request_id)
        del self.running[request.request_id]
        if request in self._prefills:
            self._prefills.remove(request)
        self._free_slots.append(request.slot)
        request.slot = -1

    def _rebuild_decodes(self, joined: list[Request] | None = None) -> None:
        running = RequestStatus.RUNNING
        self._decodes = [request for request in self._decodes if request.status is running] + (joined or [])

    # ---- health ----------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Compare all lists with each other and with the manager. Raises ``AssertionError`` with the numbers."""
        decodes, prefills = set(self._decodes), set(self._prefills)
        assert decodes | prefills == set(self.running.values()), (decodes, prefills, self.running)
        assert not decodes & prefills, decodes & prefills
        slots = [request.slot for request in self.running.values()]
        assert sorted(slots + self._free_slots) == list(range(self.config.max_num_seqs)), slots
        for request in decodes:
            assert request.num_computed_tokens == request.num_tokens - 1, request
        for request in self.running.values():
            assert request.status is RequestStatus.RUNNING, request
            table = self.manager.get_block_table(request.request_id)
            room = len(table) * self.manager.block_size
            waits_for_block = room == request.num_computed_tokens and request in self._full
            assert room >= request.num_tokens or waits_for_block, request
        assert set(self.manager.request_ids()) == set(self.running), "someone holds blocks and does not run"
        self.manager.check_integrity()


def _urgency(request: Request) -> tuple[int, int]:
    """Smaller is more urgent."""
    return request.priority, request.arrival
