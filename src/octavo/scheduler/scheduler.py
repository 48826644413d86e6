"""Continuous batching under a token budget: who computes what in the next step.

One rule instead of phases: each request computes some of the tokens whose KV it lacks. In a step

1. decodes come first: running requests that lack one token each; they always fit the budget;
2. then running requests that lack more, in chunks, in order of arrival;
3. then waiting requests, while the budget, the slots and the blocks last.

A request gets the blocks for all tokens it has so far when it is admitted, so only decodes ask for blocks later, one
each time they fill the last. If the pool is out of blocks, the request with the least work to lose among the least
urgent is preempted: its blocks go to the prefix cache, it waits at its old place in the queue, and computes again what
the cache has lost meanwhile. The cache loses the end of a request before its beginning, so a victim loses no more than
others needed.

Why nothing waits forever: what could never fit is refused in :meth:`Scheduler.add_request`. Of the most urgent requests
the one with the most work is never preempted while others run, so it finishes; work counts more after each preemption,
so everybody becomes that one. The head of the queue is admitted at the latest when nobody runs any more.
"""

from __future__ import annotations

import math
import sys
import time
from array import array
from collections.abc import Callable, Sequence

from octavo.config import SchedulerConfig
from octavo.errors import QueueFullError, RequestError, RequestTooLargeError
from octavo.kvcache.eviction import Turn
from octavo.kvcache.manager import NO_MATCH, PagedKVCacheManager, Pin
from octavo.namespace import Namespace
from octavo.request import Request, RequestStatus
from octavo.scheduler.deadlines import Deadlines
from octavo.scheduler.forecast import MemoryForecast
from octavo.scheduler.health import MemoryHealth
from octavo.scheduler.output import Admission, Chunk, ExecutorOutput, SchedulerOutput, StepOutput, TableUpdate
from octavo.scheduler.request_queue import RequestQueue
from octavo.scheduler.stats import SchedulerStats

NEVER = sys.maxsize


class Scheduler:
    """Owns the order of requests; asks the manager for their blocks.

    Attributes:
        manager: the KV cache.
        waiting: requests without a slot.
        running: requests with a slot, by id.
        stats: what has happened so far.
        health: audits of the memory.
        forecast: how full the pool will become.
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
        self.health = MemoryHealth(manager, clock)
        self.forecast = MemoryForecast(manager.block_size)
        self._clock = clock
        self._deadlines = Deadlines()
        self._step = 0
        self._num_arrivals = 0
        self._free_slots = list(range(config.max_num_seqs))[::-1]
        self._decodes: list[Request] = []  # lack one token; replaced, never changed, when one joins or leaves
        self._appends: list[Callable[[int], None]] = []  # of their token_ids
        self._joined: list[Request] = []  # decodes from the next step on
        self._somebody_left = False  # of the decodes
        self._prefills: list[Request] = []  # lack more, by arrival
        self._full: list[Request] = []  # decodes whose next token needs a new block
        self._due: dict[int, list[Request]] = {}  # by step: decodes whose ``attention_at`` it reaches; some have left
        self._stop_ids: set[int] = set()  # of all that run, and perhaps of some that have left
        self._parents: dict[str, Request] = {}  # of forks that have not parted yet
        self._head_blocked = False  # the head of the queue did not fit, and nothing has changed since
        self._scheduled: SchedulerOutput | None = None  # the step under way

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.running) or len(self.waiting) > 0

    # ---- requests come and go ------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Take in a request, and its forks with it.

        Raises:
            RequestTooLargeError: it could never fit.
            QueueFullError: ``max_waiting_requests`` wait already.
            RequestError: its id is in use, or its prompt is empty.
        """
        limit = self.config.max_waiting_requests
        if limit is not None and len(self.waiting) >= limit:
            raise QueueFullError(f"{limit} requests wait already (max_waiting_requests); try again later")
        max_tokens = self._limit_tokens(request)
        for each in (request, *request.forks):
            if each.request_id in self.running or each.request_id in self.waiting or each.request_id in self._parents:
                raise RequestError(f"request id {each.request_id!r} is in use; choose another")
        for each in (request, *request.forks):
            each.max_tokens = max_tokens
            each.arrival = self._num_arrivals
            self._num_arrivals += 1
            self.waiting.arrive(each)
            if each.deadline_s < math.inf:
                self._deadlines.add(each, each.deadline_s, to_start=False)
            if self.config.max_queue_time_s is not None:
                self._deadlines.add(each, each.arrival_s + self.config.max_queue_time_s, to_start=True)
        for fork in request.forks:
            self.waiting.remove(fork.request_id)
            self._parents[fork.request_id] = request
        self._head_blocked = False

    def finish_request(self, request_id: str, reason: str) -> Request | None:
        """End a request from outside, wherever it is; its work stays in the prefix cache. ``None``: unknown id."""
        request = self.running.get(request_id) or self.waiting.remove(request_id)
        if request is None and request_id in self._parents:
            parent = self._parents.pop(request_id)
            request = next(fork for fork in parent.forks if fork.request_id == request_id)
            parent.forks.remove(request)
        if request is not None:
            self._end(request, reason)
            self._head_blocked = False
        return request

    def _limit_tokens(self, request: Request) -> int:
        """How long the request may become, prompt and output; refuses what could never fit."""
        num_prompt = request.num_prompt_tokens
        num_blocks = self.manager.num_blocks - self.manager.num_pinned_blocks
        num_pool_tokens = num_blocks * self.manager.block_size
        if num_prompt == 0:
            raise RequestError("the prompt is empty; give at least one token")
        if num_prompt + 1 > self.max_model_len:
            raise RequestTooLargeError(
                f"the prompt has {num_prompt} tokens and the model's limit is {self.max_model_len} for prompt and "
                f"output together; shorten the prompt by {num_prompt + 1 - self.max_model_len} or raise max_model_len"
            )
        if num_prompt + 1 > num_pool_tokens:
            raise RequestTooLargeError(
                f"the prompt has {num_prompt} tokens and the KV cache holds {num_pool_tokens} "
                f"({num_blocks} blocks of {self.manager.block_size}); shorten the prompt by "
                f"{num_prompt + 1 - num_pool_tokens} or raise num_blocks"
            )
        limit = min(self.max_model_len, num_pool_tokens)
        if request.params.max_tokens is not None:
            limit = min(limit, num_prompt + request.params.max_tokens)
        return limit

    def pin_prefix(self, name: str, token_ids: array[int], namespace: Namespace, expires_s: float = math.inf) -> Pin:
        """Keep what is cached of a prefix until it is unpinned or expires.

        Raises:
            RequestError: the name is in use, or some accepted request might then no longer fit.
        """
        if name in self.manager.pins:
            raise RequestError(f"a prefix is pinned as {name!r} already; unpin it first or choose another name")
        pin = self.manager.pin(name, token_ids, namespace, expires_s)
        unfinished = (*self.running.values(), *self.waiting, *self._parents.values())
        most = -(-max((request.max_tokens for request in unfinished), default=0) // self.manager.block_size)
        num_pinned, num_blocks = self.manager.num_pinned_blocks, self.manager.num_blocks
        if num_pinned + max(most, 1) > num_blocks:
            self.manager.unpin(name)
            raise RequestError(
                f"pinning {name!r} would leave {num_blocks - num_pinned} of {num_blocks} blocks, "
                f"and a request may need {most}; pin less, or raise num_blocks"
            )
        return pin

    # ---- one step --------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Choose what the next step computes."""
        self._step += 1
        self.manager.block_pool.now_s = now_s = self._clock()
        self.manager.unpin_expired()
        expired = self._end_expired(now_s)
        output = self._scheduled = SchedulerOutput(self._step, self.decodes, expired=expired)
        self._grow_full_tables(output)
        budget = self.config.max_num_batched_tokens - len(output.decodes)
        budget = self._continue_prefills(output, budget)
        if not output.preempted:
            self._admit_waiting(output, budget)
        output.block_copies = self.manager.take_copies()
        for request_id, index, block_ids in self.manager.take_updates():
            output.table_updates.append(TableUpdate(self.running[request_id].slot, index, block_ids))
        self.health.check_step()
        assert output.decodes or output.chunks or not self.has_unfinished_requests, "requests wait and nothing runs"
        return output

    def update(self, output: SchedulerOutput, result: ExecutorOutput) -> StepOutput:
        """Take in what the step computed: append tokens, cache full blocks, end what is complete."""
        assert output.decodes is self._decodes, "requests came or went during the step"
        finished: list[Request] = []
        num_decodes = len(output.decodes)
        for append, token_id in zip(self._appends, result.token_ids, strict=False):
            append(token_id)  # the token before it is computed now: one is missing as before
        if not self._stop_ids.isdisjoint(result.token_ids):
            for request, token_id in zip(output.decodes, result.token_ids, strict=False):
                if token_id in request.stop_ids:
                    self._attend(request, token_id, finished)
        for request in self._due.pop(self._step, ()):
            if request.num_tokens >= request.attention_at and request.status is RequestStatus.RUNNING:
                self._attend(request, request.token_ids[-1], finished)
        self._update_chunks(output.chunks, result.token_ids[num_decodes:], finished)
        requests = output.sampling_requests
        finished += output.expired
        self._scheduled = None
        self.stats.num_steps += 1
        self.stats.num_computed_tokens += output.num_tokens
        return StepOutput(requests, result.token_ids, finished, result)

    def abandon_step(self) -> None:
        """The step under way has failed: end whoever runs, with ``finish_reason="error"``; whoever waits goes on.

        Nobody knows how much of it was done, so nothing is kept but what earlier steps entered into the prefix cache.
        """
        chunks = [] if self._scheduled is None else self._scheduled.chunks
        self._scheduled = None
        for fork in [fork for chunk in chunks for fork in chunk.forks]:
            if fork.request_id not in self.running:  # it has a slot, and nothing else yet
                self._free_slots.append(fork.slot)
                fork.slot = -1
                self._end(fork, "error")
        for request in list(self.running.values()):
            table = self.manager.get_block_table(request.request_id)
            request.num_computed_tokens = table.num_indexed * self.manager.block_size
            self._end(request, "error")
        self._due.clear()

    # ---- many equal steps at once ----------------------------------------------------------------------------

    @property
    def decodes(self) -> list[Request]:
        """Running requests that lack one token each, in the order of the next step. Do not change the list."""
        if self._joined or self._somebody_left:
            decodes, running = self._decodes + self._joined, RequestStatus.RUNNING
            self._decodes = [request for request in decodes if request.status is running]
            self._appends = [request.token_ids.append for request in self._decodes]
            self._joined, self._somebody_left = [], False
            if not self.running:
                self._stop_ids.clear()
        return self._decodes

    def num_steady_steps(self) -> int:
        """How many coming steps do nothing but give each decode one more token, if nobody arrives or leaves.

        A simulator jumps over them with :meth:`advance`; 0 when the next step may do more.
        """
        may_admit = len(self.waiting) > 0 and self._free_slots and not self._head_blocked
        if self._prefills or self._full or self._deadlines or self.manager.pins or may_admit or not self.running:
            return 0
        return min(self._due) - 1 - self._step

    def advance(self, num_steps: int, token_ids: Sequence[int]) -> None:
        """What ``num_steps`` steady steps come to if each decode gets its token of ``token_ids`` in every one."""
        assert 0 <= num_steps <= self.num_steady_steps(), (num_steps, self.num_steady_steps())
        for request, token_id in zip(self.decodes, token_ids, strict=True):
            assert token_id not in request.stop_ids, (request, token_id)
            request.token_ids.extend(array("i", [token_id]) * num_steps)
        self._step += num_steps
        self.stats.num_steps += num_steps
        self.stats.num_computed_tokens += num_steps * len(self._decodes)

    # ---- parts of schedule -----------------------------------------------------------------------------------

    def _end_expired(self, now_s: float) -> list[Request]:
        expired = self._deadlines.take_expired(now_s) if self._deadlines else []
        for request in expired:
            self.finish_request(request.request_id, "timeout")
        return expired

    def _grow_full_tables(self, output: SchedulerOutput) -> None:
        """Give a block to each decode that filled its last one, preempting where there is none."""
        full, self._full = [request for request in self._full if request.status is RequestStatus.RUNNING], []
        num_grown = self.manager.extend([request.request_id for request in full]) if full else 0
        for request in full[:num_grown]:
            self._go_on(request)
        for request in full[num_grown:]:
            while request.status is RequestStatus.RUNNING:
                if self.manager.allocate(request.request_id, 1) is not None:
                    self._go_on(request)
                    break
                self._preempt(max(self.running.values(), key=_dispensability), output)
        output.decodes = self.decodes

    def _go_on(self, request: Request) -> None:
        """A decode has a block for its next token."""
        self._plan_attention(request)
        self._await_attention(request, self._step)
        self.forecast.update(request, self._step)
        self.waiting.charge(request)

    def _continue_prefills(self, output: SchedulerOutput, budget: int) -> int:
        for request in self._prefills:
            if budget == 0:
                break
            budget -= self._schedule_chunk(request, output, budget)
        return budget

    def _admit_waiting(self, output: SchedulerOutput, budget: int) -> None:
        while len(self.waiting) > 0 and budget > 0 and self._free_slots and not self._head_blocked:
            request = self.waiting.peek()
            num_cached = self._admit(request)
            if num_cached is None:
                self._head_blocked = True
                break
            self.waiting.pop()
            self._start(request, num_cached, output)
            budget -= self._schedule_chunk(request, output, budget)

    def _admit(self, request: Request) -> int | None:
        """Give the request its blocks if there are enough, now and probably later; returns its cached tokens."""
        manager, pool = self.manager, self.manager.block_pool
        match = manager.match_prefix(request.token_ids, request.namespace) if request.reuses_prefix else NO_MATCH
        num_new = -(-request.num_tokens // manager.block_size) - len(match.blocks)
        if self.running and not self.forecast.fits(request, num_new, pool.num_held, pool.num_blocks, self._step):
            return None
        return manager.admit(request.request_id, request.num_tokens, match, request.namespace, request.token_ids)

    def _schedule_chunk(self, request: Request, output: SchedulerOutput, budget: int) -> int:
        start, num_missing = request.num_computed_tokens, request.num_tokens - request.num_computed_tokens
        num_tokens = min(num_missing, budget)
        samples = num_tokens == num_missing
        output.chunks.append(Chunk(request, start, num_tokens, samples, self._start_forks(request) if samples else []))
        return num_tokens

    def _start_forks(self, request: Request) -> list[Request]:
        """The request's prompt is about to be complete: its forks get slots; those without one wait like others."""
        forks, request.forks = request.forks, []
        started: list[Request] = []
        for fork in forks:
            del self._parents[fork.request_id]
            if self._free_slots:
                fork.slot = self._free_slots.pop()
                started.append(fork)
            else:
                self.waiting.push(fork)
        return started

    # ---- parts of update -------------------------------------------------------------------------------------

    def _update_chunks(self, chunks: list[Chunk], token_ids: Sequence[int], finished: list[Request]) -> None:
        """Requests that have caught up decode from now on."""
        tokens = iter(token_ids)
        for chunk in chunks:
            request = chunk.request
            request.num_missing_tokens -= chunk.num_tokens
            self.manager.cache_blocks(request.request_id, request.token_ids, request.num_computed_tokens)
            if not chunk.samples:
                continue
            self._prefills.remove(request)
            for fork in chunk.forks:
                self._part(fork, request)
            for each in (request, *chunk.forks):
                token_id = next(tokens)
                each.token_ids.append(token_id)
                each.num_missing_tokens = 1
                self._joined.append(each)
                if each.num_tokens >= each.attention_at or token_id in each.stop_ids:
                    self._attend(each, token_id, finished)
                else:
                    self._await_attention(each, self._step + 1)

    def _part(self, fork: Request, parent: Request) -> None:
        """A fork starts with its parent's blocks; both ask before they next write, for a shared block is copied."""
        self.manager.fork(parent.request_id, fork.request_id)
        fork.num_computed_tokens = fork.num_cached_tokens = parent.num_computed_tokens
        self._run(fork)
        parent.attention_at = fork.attention_at = 0

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
            request.attention_at = NEVER
            self._full.append(request)

    # ---- states of a request ---------------------------------------------------------------------------------

    def _start(self, request: Request, num_cached: int, output: SchedulerOutput) -> None:
        """Blocks are there: the request takes a slot and computes what the cache does not have."""
        request.slot = self._free_slots.pop()
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = num_cached
            self.stats.num_cached_tokens += num_cached
            self.stats.num_prompt_tokens += request.num_prompt_tokens
        else:
            num_lost = max(request.num_computed_tokens - num_cached, 0)
            request.num_recomputed_tokens += num_lost
            self.stats.num_recomputed_tokens += num_lost
        request.num_computed_tokens = num_cached
        self._run(request)
        self._prefills.append(request)
        table = self.manager.get_block_table(request.request_id)
        output.admissions.append(Admission(request, request.slot, table[:], num_cached))

    def _run(self, request: Request) -> None:
        request.status = RequestStatus.RUNNING
        for each in (request, *request.forks):  # whose prompt is being computed with it, do not queue either
            if each.first_scheduled_s is None:
                each.first_scheduled_s = self._clock()
        self.running[request.request_id] = request
        self._stop_ids |= request.stop_ids
        table = self.manager.get_block_table(request.request_id)
        self._plan_attention(request)
        self.forecast.add(request, self._step, sum(block.ref_count > 1 for block in table.blocks[: table.num_indexed]))

    def _plan_attention(self, request: Request) -> None:
        """Look at the request again when its last block is full or its last token is there."""
        block_size = self.manager.block_size
        num_blocks = -(-len(request.token_ids) // block_size)
        attention_at = num_blocks * block_size + 1
        request.attention_at = attention_at if attention_at < request.max_tokens else request.max_tokens
        if num_blocks > request.max_blocks:
            request.max_blocks = num_blocks

    def _await_attention(self, request: Request, step: int) -> None:
        """A decode gets one token in each step, from ``step`` on, so it is known when it needs attention."""
        due = step + request.attention_at - request.num_tokens - 1
        if due in self._due:
            self._due[due].append(request)
        else:
            self._due[due] = [request]

    def _preempt(self, request: Request, output: SchedulerOutput) -> None:
        self._release(request, "preempted")
        request.status = RequestStatus.WAITING
        request.num_preemptions += 1
        self.waiting.push(request)
        output.preempted.append(request)
        self.stats.num_preemptions += 1

    def _end(self, request: Request, reason: str) -> None:
        if request.status is RequestStatus.RUNNING:
            self._release(request, reason)
        for fork in request.forks:  # the parent went before the prompt was complete: they compute it themselves
            del self._parents[fork.request_id]
            self.waiting.push(fork)
        request.forks = []
        if reason in ("stop", "length"):
            self.forecast.lengths.learn(request.num_output_tokens)
        self.waiting.depart(request)
        request.status, request.finish_reason = RequestStatus.FINISHED, reason
        self.stats.num_finished += 1

    def _release(self, request: Request, reason: str) -> None:
        """Take slot and blocks away; what was computed stays findable."""
        self.waiting.charge(request)
        self.manager.cache_tail(request.request_id, request.token_ids, request.num_computed_tokens)
        self.manager.free(request.request_id, Turn(request.num_output_tokens, reason))
        self.forecast.remove(request)
        del self.running[request.request_id]
        if request in self._prefills:
            self._prefills.remove(request)
        self._somebody_left = True
        self._free_slots.append(request.slot)
        request.slot = -1
        self._head_blocked = False

    # ---- health ----------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Compare all lists with each other and with the manager. Raises ``AssertionError`` with the numbers."""
        decodes, prefills = set(self.decodes), set(self._prefills)
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


def _dispensability(request: Request) -> tuple[int, int, int]:
    """The greatest is preempted: the least urgent, of these the one with the least work to lose, then the latest.

    Work counts more after each preemption, so nobody is a victim again and again.
    """
    return request.priority, -request.num_computed_tokens * (1 + request.num_preemptions), request.arrival
