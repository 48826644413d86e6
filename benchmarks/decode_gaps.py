"""How long streams wait for their next token while a long prompt is computed beside them.

    python benchmarks/decode_gaps.py [--model default] [--streams 8] [--prompt 4000] [--chunk 256 512] [--json]

Some streams decode; then a prompt of many tokens arrives, and is computed in chunks that share their steps with the
streams. A stream's gap is the time from one of its tokens to the next. Decodes come first in every step, so a gap is
never longer than a step, and no step is longer than its token budget makes it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator

from rows import Row, print_rows

from octavo import LLM, SamplingParams

COLUMNS = {
    "chunk": "chunk",
    "num_steps": "steps",
    "alone_ms": "streams alone, ms",
    "median_ms": "median step, ms",
    "worst_gap_ms": "worst gap, ms",
    "worst_over_median": "worst ÷ median",
}
NUM_STREAM_TOKENS = 64
"""Of each stream's prompt."""


def measure_gaps(model: str, num_streams: int, num_prompt_tokens: int, chunk: int) -> Row:
    """One prompt of ``num_prompt_tokens`` beside ``num_streams`` streams, ``chunk`` tokens of it in a step."""
    max_tokens = num_prompt_tokens + NUM_STREAM_TOKENS
    num_blocks = (num_streams + 1) * (max_tokens // 16 + 2)
    llm = LLM(model, num_blocks=num_blocks, max_num_batched_tokens=chunk + num_streams, max_num_seqs=num_streams + 1)
    engine, generator = llm.engine, random.Random(1)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)

    def add(name: str, num_tokens: int) -> None:
        tokens = [generator.randrange(1000, 40000) for _ in range(num_tokens)]
        engine.add_request(name, tokens, params)

    def step_s() -> float:
        began = time.perf_counter()
        engine.step()
        return time.perf_counter() - began

    for number in range(num_streams):
        add(f"stream {number}", NUM_STREAM_TOKENS)
    scheduler = engine.core.scheduler
    while len(scheduler.decodes) < num_streams:
        engine.step()
    alone = [step_s() for _ in range(20)]
    add("long prompt", num_prompt_tokens)
    gaps = []
    while len(scheduler.decodes) <= num_streams:
        num_tokens = [len(request.token_ids) for request in scheduler.decodes]
        gaps.append(step_s())
        assert [len(request.token_ids) for request in scheduler.decodes[:num_streams]] == [n + 1 for n in num_tokens]
    full = gaps[: num_prompt_tokens // chunk]  # the rest of the prompt is less than a chunk
    return {
        "streams": num_streams,
        "prompt_tokens": num_prompt_tokens,
        "chunk": chunk,
        "num_steps": len(gaps),
        "alone_ms": statistics.median(alone) * 1e3,
        "median_ms": statistics.median(full) * 1e3,
        "worst_gap_ms": max(gaps) * 1e3,
        "worst_over_median": max(gaps) / statistics.median(full),
    }


def measure(arguments: argparse.Namespace) -> Iterator[Row]:
    """A row for each chunk size."""
    for chunk in arguments.chunk:
        yield measure_gaps(arguments.model, arguments.streams, arguments.prompt, chunk)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default", help="as octavo run takes it")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=4000, help="tokens of the long prompt")
    parser.add_argument("--chunk", type=int, nargs="+", default=[256, 512], help="prompt tokens in a step")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    arguments = parser.parse_args()
    note = f"A prompt of {arguments.prompt} tokens beside {arguments.streams} streams."
    print_rows(list(measure(arguments)), COLUMNS, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
