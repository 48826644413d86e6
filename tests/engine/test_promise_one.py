"""An answer depends only on its request: the same ids, texts and log probabilities, bit for bit, whatever goes on.

The same 24 requests run alone, each in a fresh engine, and then together in every way in which an engine can cut and
mix its work. Floats are compared with ``==``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.tiny_llm import MARKER_ID, NUM_TOKENS, tiny_model

from octavo import LLM, SamplingParams
from octavo.backends.native.cpu_plan import cpu_plan
from octavo.outputs import Logprob, RequestOutput
from octavo.scheduler.output import SchedulerOutput

Case = tuple[list[int], SamplingParams]

MODELS = ["llama-bf16", "mistral", "qwen2", "qwen3"]
STEADY = 0.004
"""A temperature at which the tiny models, whose logits differ by hundredths, neither repeat nor ignore themselves."""


def tokens(start: int, count: int) -> list[int]:
    """Some tokens, none of them special."""
    return [2 + (start + 37 * index + index * index // 5) % (NUM_TOKENS - 2) for index in range(count)]


COMMON = tokens(5, 45)
"""A beginning that several prompts share; it ends inside a block of every size."""


def cases() -> list[Case]:
    params = SamplingParams
    return [
        (tokens(1, 1), params(temperature=0, max_tokens=30, logprobs=5)),
        (tokens(2, 2), params(temperature=STEADY, seed=1, max_tokens=20, logprobs=0, prompt_logprobs=3)),
        (tokens(3, 7), params(temperature=0, max_tokens=25, n=2, logprobs=1)),
        (tokens(4, 8), params(temperature=STEADY, seed=2, max_tokens=25, n=3, logprobs=2)),
        (tokens(5, 15), params(temperature=1, seed=3, max_tokens=17, top_k=20, logprobs=3)),
        (tokens(6, 16), params(temperature=STEADY, seed=4, max_tokens=33, top_p=0.5, logprobs=3)),
        (tokens(7, 17), params(temperature=STEADY, seed=5, max_tokens=9, min_p=0.3, logprobs=3)),
        (tokens(8, 31), params(temperature=0, max_tokens=40, repetition_penalty=1.5, logprobs=3)),
        (tokens(9, 32), params(temperature=0, max_tokens=40, presence_penalty=0.01, logprobs=3)),
        (tokens(10, 33), params(temperature=STEADY, seed=6, max_tokens=40, frequency_penalty=0.02, logprobs=3)),
        (tokens(11, 48), params(temperature=0, max_tokens=10, logit_bias={50: 0.02, 51: -100.0}, logprobs=3)),
        (tokens(12, 63), params(temperature=1, seed=7, max_tokens=60, stop=["a", "e", "th"], logprobs=3)),
        (tokens(13, 64), params(temperature=1, seed=8, max_tokens=60, stop=["9"], include_stop_str_in_output=True)),
        (tokens(14, 65), params(temperature=1, seed=9, max_tokens=60, stop_token_ids=[20, 30, 40, 50, 60])),
        (tokens(15, 100), params(temperature=STEADY, seed=10, max_tokens=30, logprobs=50)),
        (tokens(16, 128), params(temperature=0, max_tokens=30, prompt_logprobs=5, logprobs=5)),
        (tokens(17, 150), params(temperature=1, seed=11, max_tokens=30, min_tokens=25, logprobs=1)),
        (COMMON + tokens(18, 3), params(temperature=0, max_tokens=30, logprobs=3)),
        (COMMON + tokens(19, 30), params(temperature=STEADY, seed=12, max_tokens=30, logprobs=3)),
        (COMMON + tokens(20, 60), params(temperature=STEADY, seed=13, max_tokens=30, n=2, prompt_logprobs=2)),
        (COMMON[:40] + tokens(21, 20), params(temperature=0, max_tokens=50, logprobs=3, ignore_eos=True)),
        (COMMON, params(temperature=0, max_tokens=30, logprobs=3)),
        (COMMON, params(temperature=STEADY, seed=14, max_tokens=30, logprobs=3, repetition_penalty=1.1)),
        (tokens(22, 5), params(temperature=1, seed=15, max_tokens=90, logit_bias={MARKER_ID: 4.0}, logprobs=1)),
    ]  # fmt: skip


CASES = cases()
LONGEST = max(len(prompt) + (params.max_tokens or 0) for prompt, params in CASES)


def signature(output: RequestOutput) -> Any:
    """Everything about an answer that its request decides."""
    samples = [
        (sample.index, sample.text, sample.token_ids, sample.finish_reason, sample.stop_reason,
         sample.cumulative_logprob, [_candidates(found) for found in sample.logprobs or ()])
        for sample in output.outputs
    ]  # fmt: skip
    prompt_logprobs = [found and _candidates(found) for found in output.prompt_logprobs or ()]
    return output.prompt_token_ids, samples, prompt_logprobs


def _candidates(found: dict[int, Logprob]) -> list[tuple[int, str, int]]:
    return [(token_id, candidate.logprob.hex(), candidate.rank) for token_id, candidate in found.items()]


def signatures(llm: LLM, chosen: list[Case] = CASES) -> list[Any]:
    outputs = llm.generate([prompt for prompt, _ in chosen], [params for _, params in chosen])
    scheduler = llm.engine.core.scheduler
    scheduler.check_integrity()
    assert scheduler.manager.block_pool.num_held == 0
    return [signature(output) for output in outputs]


def admit_at_once(llm: LLM) -> None:
    """Take whoever fits now, without a thought for later: then preemption has to sort it out."""
    llm.engine.core.scheduler.forecast.fits = lambda *_: True  # type: ignore[method-assign]


def preempt_all_but_one(llm: LLM, period: int, phase: int) -> None:
    """Preempt although there is room. The scheduler admits nobody in a step that preempts, so one has to stay."""
    scheduler = llm.engine.core.scheduler
    grow_full_tables = scheduler._grow_full_tables

    def preempt_and_grow(output: SchedulerOutput) -> None:
        if output.step % period == phase:
            for request in list(scheduler.running.values())[1:]:
                scheduler._preempt(request, output)
        grow_full_tables(output)

    scheduler._grow_full_tables = preempt_and_grow  # type: ignore[method-assign]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("model"), request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("model"), "llama"))


def alone(model: str, chosen: list[Case] = CASES, **keywords: Any) -> list[Any]:
    """The answers of requests that never met another one."""
    keywords = {"backend": "native", "num_threads": 1, "num_blocks": 64, **keywords}
    return [signatures(LLM(model, **keywords), [case])[0] for case in chosen]


@pytest.fixture(scope="module")
def expected(model: str) -> list[Any]:
    return alone(model)


@pytest.fixture(scope="module")
def expected_of_llama(llama: str) -> list[Any]:
    return alone(llama)


def test_the_requests_exercise_what_they_should(expected: list[Any]) -> None:
    """Without this, a sampler that ignores its parameters would keep the promise, too."""
    samples = [sample for _, samples, _ in expected for sample in samples]
    reasons = [reason for *_, reason, _, _, _ in samples]
    assert reasons.count("stop") >= 3
    assert reasons.count("length") >= 15
    assert len({tuple(token_ids) for _, _, token_ids, *_ in samples}) >= len(samples) - 2
    assert sum(len(set(token_ids)) > len(token_ids) // 3 for _, _, token_ids, *_ in samples) >= len(samples) // 2


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_batched_with_others_on_several_threads(model: str, expected: list[Any], num_threads: int) -> None:
    assert signatures(LLM(model, num_threads=num_threads, num_blocks=256)) == expected


@pytest.mark.parametrize("block_size", [1, 8, 16, 32, 128])
def test_block_sizes(llama: str, expected_of_llama: list[Any], block_size: int) -> None:
    llm = LLM(llama, num_threads=1, block_size=block_size, num_blocks=4096 // block_size)
    assert signatures(llm) == expected_of_llama


@pytest.mark.parametrize("block_size", [8, 32])
def test_prefix_cache_hits(model: str, expected: list[Any], block_size: int) -> None:
    """The second time, whatever the first left behind is used: of prompts and answers, whole blocks and parts."""
    llm = LLM(model, num_threads=1, block_size=block_size, num_blocks=8192 // block_size)
    assert signatures(llm) == expected
    stats = llm.engine.core.scheduler.stats
    before = stats.num_cached_tokens
    assert signatures(llm) == expected
    num_reusable = sum(len(prompt) - 1 for prompt, params in CASES if params.prompt_logprobs is None)
    assert stats.num_cached_tokens - before == num_reusable


def test_without_a_prefix_cache(llama: str, expected_of_llama: list[Any]) -> None:
    llm = LLM(llama, num_threads=1, num_blocks=256, enable_prefix_caching=False)
    assert signatures(llm) == expected_of_llama
    assert llm.engine.core.scheduler.stats.num_cached_tokens == 0


@pytest.mark.parametrize("block_size, max_num_batched_tokens", [(8, 7), (8, 64), (16, 3), (16, 24)])
def test_pools_that_hold_hardly_one_request(
    model: str, expected: list[Any], block_size: int, max_num_batched_tokens: int
) -> None:
    llm = LLM(
        model,
        num_threads=1,
        block_size=block_size,
        num_blocks=-(-LONGEST // block_size),
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=min(12, max_num_batched_tokens),
    )
    admit_at_once(llm)
    assert signatures(llm) == expected
    if max_num_batched_tokens >= 24:
        assert llm.engine.core.scheduler.stats.num_preemptions >= 8


def test_an_int8_cache(llama: str, expected_of_llama: list[Any]) -> None:
    """Scales go wherever codes go: into shared blocks, copies of parts, and blocks that preemption gave to others."""
    chosen = CASES[2::3]
    expected = alone(llama, chosen, kv_cache_dtype="int8")
    assert expected != expected_of_llama[2::3]
    for num_threads, block_size, num_blocks in ((2, 16, 256), (1, 8, -(-LONGEST // 8))):
        llm = LLM(
            llama,
            num_threads=num_threads,
            block_size=block_size,
            num_blocks=num_blocks,
            max_num_batched_tokens=40,
            max_num_seqs=5,
            kv_cache_dtype="int8",
        )
        admit_at_once(llm)
        assert signatures(llm, chosen) == expected
        assert signatures(llm, chosen) == expected
        stats = llm.engine.core.scheduler.stats
        assert stats.num_cached_tokens > 0
        assert num_blocks == 256 or stats.num_preemptions > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("block_size", [8, 16])
def test_what_nobody_wrote_is_never_read(llama: str, dtype: str, block_size: int) -> None:
    """Every byte of the pool is NaN (of a number, or of a scale) until a token's K and V are written there."""
    chosen = CASES[1::4]
    answers = []
    for poison in (0x00, 0xFF):
        llm = LLM(
            llama,
            num_threads=2,
            block_size=block_size,
            num_blocks=-(-LONGEST // block_size),
            max_num_batched_tokens=24,
            max_num_seqs=6,
            kv_cache_dtype=dtype,
        )
        llm.engine.core.executor._kv_cache.bytes()[:] = poison
        answers.append(signatures(llm, chosen))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("period, phase", [(2, 0), (2, 1), (5, 3)])
def test_preemption_at_every_step_parity(
    llama: str, expected_of_llama: list[Any], period: int, phase: int, enable_prefix_caching: bool
) -> None:
    """All but one give their blocks back, at every ``period``-th step; without a cache, all is computed again."""
    llm = LLM(
        llama,
        num_threads=1,
        block_size=8,
        num_blocks=150,
        max_num_batched_tokens=40,
        max_num_seqs=5,
        enable_prefix_caching=enable_prefix_caching,
    )
    preempt_all_but_one(llm, period, phase)
    assert signatures(llm) == expected_of_llama
    stats = llm.engine.core.scheduler.stats
    assert stats.num_preemptions > stats.num_steps / (2 * period)
    if not enable_prefix_caching:
        assert stats.num_recomputed_tokens > stats.num_computed_tokens / 2


@pytest.mark.parametrize("max_num_batched_tokens", range(1, 65))
def test_every_chunk_size(llama: str, expected_of_llama: list[Any], max_num_batched_tokens: int) -> None:
    """Chunks of every size, cut where the neighbours leave room."""
    chosen = slice(max_num_batched_tokens % 5, None, 5)  # a fifth of the requests, for the time it takes
    llm = LLM(
        llama,
        num_threads=1,
        num_blocks=48,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=min(6, max_num_batched_tokens),
    )
    assert signatures(llm, CASES[chosen]) == expected_of_llama[chosen]


# ---- the default model, and the machine's instruction sets ----------------------------------------------------------

SENTENCES = [
    "The capital of France is",
    "Once upon a time, in a small village at the foot of a great mountain, there lived a clockmaker who",
    "def fibonacci(n: int) -> int:\n    ",
    "Příliš žluťoučký kůň",
    "1, 1, 2, 3, 5, 8,",
    "Once upon a time, in a small village at the foot of a great mountain, there lived a baker whose",
]


def sentence_cases() -> list[tuple[str, SamplingParams]]:
    variants = [
        SamplingParams(temperature=0, max_tokens=8, logprobs=3),
        SamplingParams(temperature=0.8, seed=5, max_tokens=8, top_p=0.9, logprobs=3),
        SamplingParams(temperature=0, max_tokens=8, repetition_penalty=1.2, n=2, logprobs=1, prompt_logprobs=2),
        SamplingParams(temperature=1.0, seed=6, max_tokens=8, top_k=40, n=2, logprobs=0),
        SamplingParams(temperature=0, max_tokens=8, stop="13", logprobs=5),
        SamplingParams(temperature=0.7, seed=7, max_tokens=8, min_p=0.1, frequency_penalty=0.5, logprobs=2),
    ]
    return list(zip(SENTENCES, variants, strict=True))


@pytest.fixture(scope="module")
def expected_of_the_default_model() -> list[Any]:
    """Each request starts from an empty cache in an engine where it is alone."""
    answers = []
    llm = LLM("default", num_threads=1, num_blocks=64, enable_prefix_caching=False)
    for prompt, params in sentence_cases():
        (output,) = llm.generate(prompt, params)
        answers.append(signature(output))
    return answers


@pytest.mark.parametrize(
    "keywords",
    [
        {"num_threads": 1, "num_blocks": 64},
        {"num_threads": 2, "num_blocks": 64, "block_size": 32},
        {"num_threads": 2, "num_blocks": 16, "block_size": 8, "max_num_batched_tokens": 7, "max_num_seqs": 5},
    ],
    ids=["batched", "two threads", "chunks in a small pool"],
)
def test_the_default_model(expected_of_the_default_model: list[Any], keywords: dict[str, Any]) -> None:
    llm = LLM("default", **keywords)
    admit_at_once(llm)
    for _ in ("cold", "from the prefix cache"):
        assert signatures(llm, sentence_cases()) == expected_of_the_default_model


PRINT_ANSWERS = """
import json, sys
sys.path.insert(0, {tests!r})
from engine import test_promise_one as promise
from octavo import LLM
llm = LLM({model!r}, num_threads=2, num_blocks=256)
assert llm.engine.core.executor.backend.plan.isa == {isa!r}
print(json.dumps(promise.signatures(llm, promise.{cases}())))
"""


def answers_with(isa: str, model: str, cases: str) -> Any:
    """The answers of a process whose kernels use one instruction set."""
    script = PRINT_ANSWERS.format(tests=str(Path(__file__).parents[1]), model=model, isa=isa, cases=cases)
    environment = {**os.environ, "OCTAVO_ISA": isa}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def llama_bf16(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("model"), "llama-bf16"))


@pytest.fixture(scope="module")
def expected_of_llama_bf16(llama_bf16: str) -> list[Any]:
    return alone(llama_bf16)


def skip_unless_here(isa: str) -> None:
    if isa not in cpu_plan().available_isas:
        pytest.skip(f"this machine has no {isa}, only {', '.join(cpu_plan().available_isas)}")


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "amx"])
def test_instruction_sets(isa: str, llama_bf16: str, expected_of_llama_bf16: list[Any]) -> None:
    skip_unless_here(isa)
    assert answers_with(isa, llama_bf16, "cases") == json.loads(json.dumps(expected_of_llama_bf16))


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_instruction_sets_with_the_default_model(isa: str, expected_of_the_default_model: list[Any]) -> None:
    """Scalar code would need minutes; AMX, where it is, is what the expected answers were computed with."""
    skip_unless_here(isa)
    answers = answers_with(isa, "default", "sentence_cases")
    assert answers == json.loads(json.dumps(expected_of_the_default_model))
