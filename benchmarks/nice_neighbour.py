"""Decode beside a busy process of the lowest priority that sits on one of our cores.

    python benchmarks/nice_neighbour.py [--model default] [--rounds 5] [--json]

Each round decodes one stream alone, then beside the neighbour. The kernel gives a process at ``nice 19`` about a
seventieth of a core that someone else wants, so little should be lost. But threads that wait for each other in a loop
lose nearly everything: whenever one of them is not running, all others burn their time. Printed are medians over the
rounds, and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rows import print_rows
from throughput import Engine

NEIGHBOUR = """
import os, sys
os.nice(19)
os.sched_setaffinity(0, {int(sys.argv[1])})
print("busy", flush=True)
while True:
    pass
"""


@contextmanager
def neighbour(core: int) -> Iterator[None]:
    """A process that never rests, on that core, from its first turn until the end of the block."""
    with subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(core)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"busy\n"
            yield
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default", help="as octavo run takes it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    arguments = parser.parse_args()

    engine = Engine(arguments.model, max_streams=1)
    core = max(os.sched_getaffinity(0))
    engine.decode_tokens_per_s(1)  # touches everything once
    quiet, beside = [], []
    for _ in range(arguments.rounds):
        quiet.append(engine.decode_tokens_per_s(1))
        with neighbour(core):
            beside.append(engine.decode_tokens_per_s(1))
    backend = engine.llm.engine.core.executor.backend
    row = {
        "threads": backend.num_threads,
        "isa": backend.plan.isa,
        "decode_tokens_per_s": statistics.median(quiet),
        "decode_tokens_per_s_beside_neighbour": statistics.median(beside),
        "kept": statistics.median(b / q for b, q in zip(beside, quiet, strict=True)),
    }
    columns = {
        "threads": "threads",
        "decode_tokens_per_s": "decode tokens/s",
        "decode_tokens_per_s_beside_neighbour": "beside a neighbour",
        "kept": "kept",
    }
    print_rows([row], columns, as_json=arguments.json, note=f"Medians of {arguments.rounds} rounds.")


if __name__ == "__main__":
    main()
