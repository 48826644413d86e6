"""Random lives of requests at the engine with text: samples, stops, aborts, deadlines, failing steps, over tiny pools.

The executor pretends, and notices every fault of the memory; the answer of each sample is known without any engine.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.checking_executor import CheckingExecutor, next_token
from support.scripted_executor import SaboteurExecutor
from support.tiny_llm import EOS_ID, NUM_TOKENS, tiny_model

from octavo.config import SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.engine.input_processor import InputProcessor
from octavo.engine.llm_engine import LLMEngine
from octavo.errors import RequestTooLargeError
from octavo.kvcache.manager import PagedKVCacheManager
from octavo.outputs import CompletionDelta, RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.scheduler.output import SchedulerOutput
from octavo.scheduler.scheduler import Scheduler
from octavo.tokenization.tokenizer import Tokenizer

with tempfile.TemporaryDirectory() as folder:
    TOKENIZER = Tokenizer.from_hugging_face(tiny_model(Path(folder) / "tiny"))
    TOKENIZER.encode("the")

PROMPTS = st.lists(st.integers(2, 4), min_size=1, max_size=30)
"""Three tokens only, so that prefixes meet by chance."""
MAX_MODEL_LEN = 120


class FailureError(Exception):
    """Nothing of ours."""


class Caller:
    """What the owner of a request knows of it."""

    def __init__(self, prompt: list[int], params: SamplingParams, seed: int, is_late: bool) -> None:
        self.prompt, self.params, self.seed = prompt, params, seed
        self.may_time_out = is_late
        self.deltas: list[CompletionDelta] = []
        self.output: RequestOutput | None = None
        self.ended_by_failure = False

    def check(self, max_tokens: int) -> None:
        """All that was said is what the request alone decides, cut off where somebody cut it off."""
        assert (self.output is None) == self.ended_by_failure
        for index in range(self.params.n):
            mine = [delta for delta in self.deltas if delta.index == index]
            token_ids = [token_id for delta in mine for token_id in delta.token_ids]
            assert token_ids == self.answer(index, len(token_ids))
            reasons = [delta.finish_reason for delta in mine if delta.finish_reason is not None]
            assert len(reasons) == 1 or self.ended_by_failure
            if self.output is not None:
                self.check_sample(index, token_ids, "".join(delta.text for delta in mine), reasons[0], max_tokens)

    def check_sample(self, index: int, token_ids: list[int], text: str, reason: str, max_tokens: int) -> None:
        assert self.output is not None
        sample = self.output.outputs[index]
        assert (sample.token_ids, sample.text, sample.finish_reason) == (token_ids, text, reason)
        stop_ids = {EOS_ID, *self.params.stop_token_ids}
        said = TOKENIZER.decode(token_ids[:-1] if token_ids and token_ids[-1] in stop_ids else token_ids)
        assert said.startswith(text)
        assert not any(stop in text for stop in self.params.stop)
        assert not stop_ids & set(token_ids[:-1])
        if sample.stop_reason is None or isinstance(sample.stop_reason, int):
            assert text == said
        else:
            assert said.index(sample.stop_reason) == len(text)
        if reason == "length":
            limit = min(len(self.prompt) + (self.params.max_tokens or max_tokens), max_tokens)
            assert len(self.prompt) + len(token_ids) == limit
        elif reason == "stop":
            assert isinstance(sample.stop_reason, str) or token_ids[-1] in stop_ids
        else:
            assert reason == "abort" or (reason == "timeout" and self.may_time_out)

    def answer(self, index: int, num_tokens: int) -> list[int]:
        tokens = list(self.prompt)
        for _ in range(num_tokens):
            tokens.append(next_token(tokens, (self.seed + index) % 2**64, NUM_TOKENS))
        return tokens[len(self.prompt) :]


class EngineMachine(RuleBasedStateMachine):
    """Callers come and go at any moment; the engine steps, or fails to."""

    @initialize(
        num_blocks=st.integers(2, 40),
        block_size=st.sampled_from([1, 4, 16]),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(6, 24),
        optimistic=st.booleans(),
    )
    def start(self, num_blocks: int, block_size: int, max_num_seqs: int, budget: int, optimistic: bool) -> None:
        self.skew_s = 0.0
        self.manager = PagedKVCacheManager(num_blocks, block_size)
        config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs)
        scheduler = Scheduler(config, self.manager, MAX_MODEL_LEN, clock=lambda: time.monotonic() + self.skew_s)
        if optimistic:
            scheduler.forecast.fits = lambda *_: True  # type: ignore[method-assign]
        self.executor = CheckingExecutor(num_blocks, block_size, NUM_TOKENS)
        processor = InputProcessor(TOKENIZER, NUM_TOKENS, frozenset({EOS_ID}))
        self.engine = LLMEngine(EngineCore(scheduler, self.executor), TOKENIZER, processor)
        self.callers: dict[str, Caller] = {}
        self.num_tokens = min(num_blocks * block_size, MAX_MODEL_LEN)

    @rule(
        prompt=PROMPTS,
        n=st.sampled_from([1, 1, 2, 4]),
        max_tokens=st.sampled_from([1, 2, 7, 30, None]),
        stop=st.sampled_from([(), (), ("e",), ("th", "a", "é"), ("5", "t", "]")]),
        stop_token_ids=st.lists(st.integers(2, NUM_TOKENS - 1), max_size=3),
        seed=st.integers(0, 5),
        salt=st.sampled_from([None, None, "a"]),
        priority=st.integers(-1, 1),
        tenant=st.sampled_from(["", "x"]),
        patience_s=st.sampled_from([float("inf"), float("inf"), 500.0, -1.0]),
    )
    def add(
        self,
        prompt: list[int],
        n: int,
        max_tokens: int | None,
        stop: tuple[str, ...],
        stop_token_ids: list[int],
        seed: int,
        salt: str | None,
        priority: int,
        tenant: str,
        patience_s: float,
    ) -> None:
        params = SamplingParams(n=n, max_tokens=max_tokens, stop=stop, stop_token_ids=stop_token_ids, seed=seed)
        request_id = f"r{len(self.callers)}"
        too_large = len(prompt) + 1 > self.num_tokens
        try:
            self.engine.add_request(
                request_id,
                prompt,
                params,
                priority=priority,
                cache_salt=salt,
                tenant=tenant,
                deadline_s=patience_s,
            )
        except RequestTooLargeError:
            assert too_large
        else:
            assert not too_large
            self.callers[request_id] = Caller(prompt, params, seed, is_late=patience_s < 1000)

    @precondition(lambda self: self.engine.has_unfinished_requests)
    @rule()
    def step(self) -> None:
        self.deliver(self.engine.step())

    @precondition(lambda self: self.engine.has_unfinished_requests)
    @rule(where=st.sampled_from(["before", "after"]))
    def fail(self, where: str) -> None:
        def sabotage(scheduled: SchedulerOutput) -> None:
            raise FailureError

        unfinished = [request_id for request_id in self.callers if self.engine.is_unfinished(request_id)]
        if all(self.callers[request_id].may_time_out for request_id in unfinished):
            return  # perhaps nothing is left to compute, and then nothing fails
        self.engine.core.executor = SaboteurExecutor(self.executor, **{where: sabotage})  # type: ignore[arg-type]
        with pytest.raises(FailureError):
            self.engine.step()
        self.engine.core.executor = self.executor
        for request_id in unfinished:
            if not self.engine.is_unfinished(request_id):
                self.callers[request_id].ended_by_failure = True

    @rule()
    def time_passes(self) -> None:
        self.skew_s += 1000.0

    @precondition(lambda self: self.engine.has_unfinished_requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        unfinished = [request_id for request_id in self.callers if self.engine.is_unfinished(request_id)]
        request_id = data.draw(st.sampled_from(unfinished))
        self.deliver(self.engine.abort_request(request_id))
        assert not self.engine.is_unfinished(request_id)

    def deliver(self, deltas: list[CompletionDelta]) -> None:
        for delta in deltas:
            caller = self.callers[delta.request_id]
            assert caller.output is None, "a delta after the last one"
            caller.deltas.append(delta)
            caller.output = delta.output

    @invariant()
    def accounts_balance(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.core.scheduler.check_integrity()
        unfinished = [request_id for request_id in self.callers if self.engine.is_unfinished(request_id)]
        assert self.engine.has_unfinished_requests == bool(unfinished)
        for request_id, caller in self.callers.items():
            assert (request_id in unfinished) == (caller.output is None and not caller.ended_by_failure)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.core.executor = self.executor
        for _ in range(5000):
            if not self.engine.has_unfinished_requests:
                break
            self.step()
        self.accounts_balance()
        assert self.manager.block_pool.get_num_free_blocks() == self.manager.num_blocks
        for caller in self.callers.values():
            caller.check(self.num_tokens)


EngineMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestEngineMachine = EngineMachine.TestCase
