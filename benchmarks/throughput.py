"""Tokens per second of the whole engine, Python included, beside what the machine could do at most.

    python benchmarks/throughput.py [--model default] [--streams 1 8 32 64] [--rounds 5] [--json]

Each round measures everything once, the machine's limits among it, so that what disturbs one disturbs the others;
printed are medians over the rounds, and the best of them. ``OCTAVO_ISA=avx512`` in the environment forces another
instruction set.

    decode          streams with prompts of 128 random tokens that all generate, a step of the engine per token
    prefill         one prompt of 512 random tokens, from arrival to its first token
    attention       the attention op alone: one token each of 32 streams with 4,096 tokens of context
    engine share    of a decode step alone, the part that is not spent in native code

    stream limit    reading a buffer of the weights' size with all threads ÷ bytes of weights per token
    peak            products of bf16 tiles (AMX) or fp32 multiply-adds (AVX-512, AVX2) with nothing else to do
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rows import Row, print_rows

from octavo import LLM, SamplingParams
from octavo.backends.base import Batch, KVCacheSpec
from octavo.backends.native.backend import NativeBackend
from octavo.models.config import ModelConfig
from octavo.weights.loader import open_checkpoint
from octavo.weights.sources import resolve_model

NUM_PROMPT_TOKENS = 128
NUM_DECODE_STEPS = 64
NUM_PREFILL_TOKENS = 512
ATTENTION_STREAMS, ATTENTION_CONTEXT, ATTENTION_LAYERS, BLOCK_SIZE = 32, 4096, 4, 16


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a token costs.

    Attributes:
        weight_bytes: read from memory for one token.
        flops_per_token: multiplications and additions in matrices that every token passes; the vocabulary's matrix is
            another ``vocabulary_flops``, once per sampled token.
    """

    weight_bytes: int
    flops_per_token: float
    vocabulary_flops: float

    @classmethod
    def of(cls, model: str) -> ModelSize:
        """Sizes of a checkpoint as it is stored: a tied vocabulary matrix is counted once, as the output's."""
        checkpoint = open_checkpoint(resolve_model(model))
        num_bytes, num_layer_weights, num_vocabulary = 0, 0, 0
        for name, tensor in checkpoint.tensors.items():
            if len(tensor.shape) != 2:
                continue
            is_vocabulary = "embed_tokens" in name or "lm_head" in name
            if "embed_tokens" in name and not checkpoint.config.tie_word_embeddings:
                continue  # only one row of it is read
            num_bytes += tensor.data.nbytes
            num_weights = tensor.shape[0] * tensor.shape[1]
            num_vocabulary += num_weights if is_vocabulary else 0
            num_layer_weights += 0 if is_vocabulary else num_weights
        return cls(num_bytes, 2.0 * num_layer_weights, 2.0 * num_vocabulary)


class Engine:
    """An engine that is stepped by hand."""

    def __init__(self, model: str, max_streams: int) -> None:
        longest = max(NUM_PROMPT_TOKENS + NUM_DECODE_STEPS, NUM_PREFILL_TOKENS) + 2 * BLOCK_SIZE
        self.llm = LLM(
            model,
            backend="native",
            max_num_seqs=max_streams,
            max_num_batched_tokens=max(NUM_PREFILL_TOKENS, max_streams),
            num_blocks=(max_streams + 1) * -(-longest // BLOCK_SIZE),
            enable_prefix_caching=False,
        )
        self._generator = random.Random(1)
        self._num_requests = 0

    def add(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """A request with a random prompt."""
        prompt = self._generator.choices(range(1000, 40_000), k=num_prompt_tokens)
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self.llm.engine.add_request(str(self._num_requests), prompt, params)
        self._num_requests += 1

    def step(self) -> float:
        """Seconds of one step, text included."""
        began = time.perf_counter()
        list(self.llm.engine.step())
        return time.perf_counter() - began

    def decode_tokens_per_s(self, num_streams: int) -> float:
        """All streams generate; the prompts are computed before the clock starts."""
        self._start(num_streams)
        elapsed = sum(self.step() for _ in range(NUM_DECODE_STEPS))
        self._drain()
        return num_streams * NUM_DECODE_STEPS / elapsed

    def prefill_tokens_per_s(self) -> float:
        """One prompt, computed in one step."""
        self.add(NUM_PREFILL_TOKENS, max_tokens=1)
        return NUM_PREFILL_TOKENS / self.step()

    def engine_share(self) -> float:
        """Share of a decode step alone that is spent outside the backend."""
        executor = self.llm.engine.core.executor
        native = NativeClock()
        owners = ((executor.model, "forward"), (executor.model, "compute_logits"), (executor.backend, "sample"))
        for owner, name in owners:
            setattr(owner, name, native.timed(getattr(owner, name)))
        self._start(1)
        native.elapsed_s = 0.0
        total = sum(self.step() for _ in range(NUM_DECODE_STEPS))
        self._drain()
        for owner, name in owners:
            delattr(owner, name)
        return 1 - native.elapsed_s / total

    def _start(self, num_streams: int) -> None:
        for _ in range(num_streams):
            self.add(NUM_PROMPT_TOKENS, max_tokens=NUM_DECODE_STEPS + 8)
        scheduler = self.llm.engine.core.scheduler
        while len(scheduler.decodes) < num_streams:
            self.step()
        self.step()

    def _drain(self) -> None:
        engine = self.llm.engine
        for number in range(self._num_requests):
            engine.abort_request(str(number))
        assert not engine.has_unfinished_requests


class NativeClock:
    """Adds up the time that is spent in some functions."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, with its time counted."""

        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = function(*arguments)
            self.elapsed_s += time.perf_counter() - began
            return result

        return call


class DecodeAttention:
    """The attention op on a cache that is far larger than any stream needs to be fast."""

    def __init__(self, config: ModelConfig, num_threads: int) -> None:
        self._backend = NativeBackend(num_threads)
        blocks_per_stream = ATTENTION_CONTEXT // BLOCK_SIZE
        num_blocks = ATTENTION_STREAMS * blocks_per_stream
        self._spec = KVCacheSpec(
            ATTENTION_LAYERS, num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim, "bfloat16"
        )
        self._cache = self._backend.allocate_kv_cache(self._spec)
        generator = np.random.default_rng(1)
        kv_shape = (ATTENTION_CONTEXT, config.num_kv_heads, config.head_dim)
        keys, values = generator.standard_normal((2, *kv_shape), np.float32)
        block_tables = generator.permutation(num_blocks).astype(np.int32).reshape(ATTENTION_STREAMS, blocks_per_stream)
        for table in block_tables:
            slots = (table[:, np.newaxis] * BLOCK_SIZE + np.arange(BLOCK_SIZE, dtype=np.int32)).reshape(-1)
            for layer in range(ATTENTION_LAYERS):
                self._backend.reshape_and_cache(keys, values, self._cache, layer, slots)
        self._q = generator.standard_normal((ATTENTION_STREAMS, config.num_heads, config.head_dim), np.float32)
        positions = np.full(ATTENTION_STREAMS, ATTENTION_CONTEXT - 1, np.int32)
        self._batch = Batch(
            input_ids=positions,
            positions=positions,
            slot_mapping=positions,
            block_tables=block_tables,
            seq_lens=positions + np.int32(1),
            query_start_loc=np.arange(ATTENTION_STREAMS + 1, dtype=np.int32),
            num_tokens=ATTENTION_STREAMS,
            num_requests=ATTENTION_STREAMS,
            max_query_len=1,
            max_seq_len=ATTENTION_CONTEXT,
        )
        self._scale = config.head_dim**-0.5

    @property
    def num_bytes(self) -> int:
        """Keys and values of all layers."""
        return self._spec.num_bytes

    def bytes_per_s(self) -> float:
        """Bytes of keys and values read per second, over all layers."""
        began = time.perf_counter()
        for layer in range(ATTENTION_LAYERS):
            self._backend.paged_attention(self._q, self._cache, layer, self._batch, scale=self._scale)
        return self.num_bytes / (time.perf_counter() - began)


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement of everything.

    Attributes:
        stream_bytes: per second, of a buffer of the weights' size.
        peak_flops: per second, of all threads.
        decode: streams → tokens per second.
        prefill: tokens per second.
        engine_share: see the module.
        attention: bytes of K and V per second.
        attention_limit: bytes per second of a buffer of their size.
    """

    stream_bytes: float
    peak_flops: float
    decode: dict[int, float]
    prefill: float
    engine_share: float
    attention: float
    attention_limit: float


def measure(engine: Engine, attention: DecodeAttention, size: ModelSize, streams: list[int]) -> Round:
    """One round."""
    runtime = engine.llm.engine.core.executor.backend.runtime
    decode: dict[int, float] = {}
    stream_bytes, peak_flops = runtime.streaming_bytes_per_s(size.weight_bytes), runtime.peak_flops()
    for num_streams in streams:
        decode[num_streams] = engine.decode_tokens_per_s(num_streams)
    prefill = max(engine.prefill_tokens_per_s() for _ in range(3))
    return Round(
        stream_bytes=max(stream_bytes, runtime.streaming_bytes_per_s(size.weight_bytes)),
        peak_flops=max(peak_flops, runtime.peak_flops()),
        decode=decode,
        prefill=prefill,
        engine_share=engine.engine_share(),
        attention=max(attention.bytes_per_s() for _ in range(3)),
        attention_limit=runtime.streaming_bytes_per_s(attention.num_bytes),
    )


def rows_of(rounds: list[Round], size: ModelSize, isa: str, num_threads: int) -> Iterator[Row]:
    """A row per number of streams; what does not depend on it stands in each."""

    def median(value: Callable[[Round], float]) -> float:
        return statistics.median(map(value, rounds))

    prompt_flops = size.flops_per_token * NUM_PREFILL_TOKENS + size.vocabulary_flops

    def prefill_fraction(one: Round) -> float:
        return one.prefill / NUM_PREFILL_TOKENS * prompt_flops / one.peak_flops

    for streams in rounds[0].decode:
        yield {
            "streams": streams,
            "prompt_tokens": NUM_PROMPT_TOKENS,
            "decode_tokens_per_s": median(lambda one: one.decode[streams]),  # noqa: B023
            "best_decode_tokens_per_s": max(one.decode[streams] for one in rounds),
            "times_alone": median(lambda one: one.decode[streams] / one.decode[min(one.decode)]),  # noqa: B023
            "fraction_of_stream_limit": median(
                lambda one: one.decode[streams] * size.weight_bytes / one.stream_bytes  # noqa: B023
            ),
            "stream_limit_tokens_per_s": median(lambda one: one.stream_bytes / size.weight_bytes),
            "prefill_tokens_per_s": median(lambda one: one.prefill),
            "best_prefill_tokens_per_s": max(one.prefill for one in rounds),
            "prefill_fraction_of_peak": median(prefill_fraction),
            "attention_fraction_of_stream": median(lambda one: one.attention / one.attention_limit),
            "engine_share_alone": median(lambda one: one.engine_share),
            "stream_bytes_per_s": median(lambda one: one.stream_bytes),
            "peak_flops": median(lambda one: one.peak_flops),
            "weight_bytes": size.weight_bytes,
            "flops_per_prompt_token": prompt_flops / NUM_PREFILL_TOKENS,
            "flops_per_output_token": size.flops_per_token + size.vocabulary_flops,
            "isa": isa,
            "threads": num_threads,
        }


COLUMNS = {
    "streams": "streams",
    "decode_tokens_per_s": "decode tokens/s",
    "best_decode_tokens_per_s": "best round",
    "times_alone": "× alone",
    "fraction_of_stream_limit": "÷ stream limit",
}


def note_of(row: Row) -> str:
    """What the table's other columns would repeat."""
    return (
        f"prefill of {NUM_PREFILL_TOKENS}: {row['prefill_tokens_per_s']:,.0f} tokens/s "
        f"(best {row['best_prefill_tokens_per_s']:,.0f}), {row['prefill_fraction_of_peak']:.0%} of the peak\n"
        f"attention, {ATTENTION_STREAMS} streams × {ATTENTION_CONTEXT:,} tokens: "
        f"{row['attention_fraction_of_stream']:.0%} of the streaming read speed over K and V\n"
        f"engine alone: {row['engine_share_alone']:.1%} of a step is not native code\n"
        f"the machine, {row['threads']} threads, {row['isa']}: reads {row['stream_bytes_per_s'] / 1e9:.1f} GB/s "  # type: ignore[operator]
        f"(limit {row['stream_limit_tokens_per_s']:,.0f} tokens/s alone), peak {row['peak_flops'] / 1e12:.2f} TFLOP/s"  # type: ignore[operator]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default", help="as octavo run takes it")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    arguments = parser.parse_args()

    size = ModelSize.of(arguments.model)
    engine = Engine(arguments.model, max(arguments.streams))
    backend = engine.llm.engine.core.executor.backend
    attention = DecodeAttention(engine.llm.model_config, backend.num_threads)
    measure(engine, attention, size, arguments.streams[:1])  # touches everything once
    rounds = [measure(engine, attention, size, arguments.streams) for _ in range(arguments.rounds)]
    rows = list(rows_of(rounds, size, backend.plan.isa, backend.num_threads))
    note = f"{note_of(rows[0])}\nMedians of {arguments.rounds} rounds."
    print_rows(rows, COLUMNS, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
