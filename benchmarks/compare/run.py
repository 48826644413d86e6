"""Octavo beside other engines: same prompts, same lengths, greedy, end of sequence ignored, one run.

    python benchmarks/compare/set_up.py ENVIRONMENTS
    python benchmarks/compare/make_hf_twin.py TWIN
    python benchmarks/compare/run.py ENVIRONMENTS TWIN [--model default] [--engines octavo llama-cpp …] [--json]

Every engine runs in its own environment and waits there for its turn; each round asks all of them in turn, the
machine's limit among them, so that what disturbs one disturbs the others. Printed are medians over the rounds, or with
``--best`` the best. All are measured from outside: the decode rate is what 64 more tokens per stream take, the prefill
rate what a prompt of 512 tokens takes to its first token. llama.cpp and OpenVINO run the same GGUF file as Octavo; vLLM
and transformers its bfloat16 twin. Fidelity is the distance to the same weights in float32, as in
benchmarks/fidelity.py, for engines that give logits.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from peer_process import PeerProcess

sys.path.append(str(Path(__file__).parents[1]))

from fidelity import TEXT, kl_divergence, prefill, read_text
from rows import Row, print_rows
from throughput import ModelSize

from octavo.backends.native import NativeBackend
from octavo.backends.reference import ReferenceBackend
from octavo.weights.loader import open_checkpoint
from octavo.weights.sources import resolve_model

NUM_PROMPT_TOKENS, NUM_DECODE_TOKENS, NUM_PREFILL_TOKENS = 128, 64, 512
SCRIPTS = {
    "octavo": "run_octavo.py",
    "llama-cpp": "run_llama_cpp.py",
    "openvino": "run_openvino.py",
    "vllm": "run_vllm.py",
    "transformers": "run_transformers.py",
}
READS_TWIN = ("vllm", "transformers")


@dataclass
class Engine:
    """One engine and what was measured of it.

    Attributes:
        decode: streams → tokens per second of each round.
        prefill: tokens per second of each round.
        mean_kl, top1_agreement: as in :mod:`fidelity`; ``None``: it does not give logits.
    """

    name: str
    process: PeerProcess
    decode: dict[int, list[float]] = field(default_factory=dict)
    prefill: list[float] = field(default_factory=list)
    mean_kl: float | None = None
    top1_agreement: float | None = None

    def seconds(self, prompts: list[list[int]], max_tokens: int) -> float:
        """How long it takes to complete the prompts together."""
        return float(self.process.ask({"prompts": prompts, "max_tokens": max_tokens})["seconds"])

    def measure_decode(self, streams: int, generator: random.Random) -> None:
        """One round of one number of streams."""
        prompts = random_prompts(generator, streams, NUM_PROMPT_TOKENS)
        elapsed = self.seconds(prompts, NUM_DECODE_TOKENS + 1) - self.seconds(prompts, 1)
        if elapsed > 0:  # a disturbed first call can take longer than the second
            self.decode.setdefault(streams, []).append(streams * NUM_DECODE_TOKENS / elapsed)

    def measure_prefill(self, generator: random.Random) -> None:
        """One round of prefill."""
        prompts = random_prompts(generator, 1, NUM_PREFILL_TOKENS)
        self.prefill.append(NUM_PREFILL_TOKENS / self.seconds(prompts, 1))

    def measure_fidelity(self, token_ids: np.ndarray, expected: np.ndarray, folder: Path) -> None:
        """Compare its logits with the float32 model's."""
        file = folder / f"{self.name}.npy"
        if not self.process.ask({"token_ids": token_ids.tolist(), "file": str(file)})["has_logits"]:
            return
        actual = np.load(file).astype(np.float64)
        likeliest = expected.argmax(axis=1, keepdims=True)  # log probabilities are shifted logits: shift them back
        actual += np.take_along_axis(expected - actual, likeliest, axis=1)
        self.mean_kl = float(kl_divergence(expected, actual).mean())
        self.top1_agreement = float((likeliest[:, 0] == actual.argmax(axis=1)).mean())


def random_prompts(generator: random.Random, count: int, num_tokens: int) -> list[list[int]]:
    """Prompts that have nothing in common."""
    return [generator.choices(range(1000, 40_000), k=num_tokens) for _ in range(count)]


def start(name: str, environments: Path, model: Path, twin: Path) -> Engine:
    """Start an engine and wait until its model is loaded."""
    python = Path(sys.executable) if name == "octavo" else environments / name / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python} is missing; run compare/set_up.py {environments} {name}, or leave {name} out")
    process = PeerProcess(python, SCRIPTS[name], twin if name in READS_TWIN else model)
    process.read()
    return Engine(name, process)


def rows_of(engines: list[Engine], limits: list[float], streams: list[int], *, best: bool) -> Iterator[Row]:
    """A row per engine; ratios to the first engine, which is Octavo."""

    def choose(values: list[float]) -> float:
        return max(values) if best else statistics.median(values)

    for engine in engines:
        row: dict[str, str | int | float | None] = {"engine": engine.name}
        for count in streams:
            row[f"decode_{count}"] = choose(engine.decode[count])
            row[f"octavo_times_{count}"] = choose(engines[0].decode[count]) / choose(engine.decode[count])
        row["prefill_tokens_per_s"] = choose(engine.prefill)
        row["octavo_times_prefill"] = choose(engines[0].prefill) / choose(engine.prefill)
        row["mean_kl"], row["top1_agreement"] = engine.mean_kl, engine.top1_agreement
        row["stream_limit_tokens_per_s"] = choose(limits)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", type=Path, help="folder made by compare/set_up.py")
    parser.add_argument("twin", type=Path, help="folder made by compare/make_hf_twin.py")
    parser.add_argument("--model", default="default", help="as octavo run takes it; a GGUF file in the end")
    parser.add_argument("--engines", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--best", action="store_true", help="print the best of the rounds instead of the median")
    parser.add_argument("--fidelity-tokens", type=int, default=400, help="0: leave fidelity out")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    arguments = parser.parse_args()
    names = ["octavo", *(name for name in arguments.engines if name != "octavo")]

    model = resolve_model(arguments.model)
    checkpoint = open_checkpoint(model)
    size = ModelSize.of(arguments.model)
    engines = [start(name, arguments.environments, Path(model), arguments.twin) for name in names]
    if arguments.fidelity_tokens:
        token_ids = read_text(checkpoint, arguments.fidelity_tokens, TEXT)
        expected = np.concatenate(list(prefill(checkpoint, ReferenceBackend(), token_ids)))
        with tempfile.TemporaryDirectory() as folder:
            for engine in engines:
                engine.measure_fidelity(token_ids, expected, Path(folder))
    generator = random.Random(1)
    for engine in engines:  # touches everything once
        engine.seconds(random_prompts(generator, max(arguments.streams), NUM_PROMPT_TOKENS), 2)
    limits, yardstick = [], NativeBackend().runtime
    for _ in range(arguments.rounds):
        limits.append(yardstick.streaming_bytes_per_s(size.weight_bytes) / size.weight_bytes)
        for count in arguments.streams:
            for engine in engines:
                engine.measure_decode(count, generator)
        for engine in engines:
            engine.measure_prefill(generator)
    for engine in engines:
        engine.process.close()
    columns = {"engine": "engine"}
    for count in arguments.streams:
        columns |= {f"decode_{count}": f"{count} streams", f"octavo_times_{count}": "octavo ×"}
    columns |= {"prefill_tokens_per_s": "prefill", "octavo_times_prefill": "octavo ×"}
    columns |= {"mean_kl": "mean KL", "top1_agreement": "top-1"}
    rows = list(rows_of(engines, limits, arguments.streams, best=arguments.best))
    statistic = "best" if arguments.best else "median"
    note = (
        f"tokens/s, {statistic} of {arguments.rounds} rounds; octavo ×: how many times as fast Octavo is. Reading the "
        f"weights once per token, the machine could do {rows[0]['stream_limit_tokens_per_s']:,.0f} tokens/s alone."
    )
    print_rows(rows, columns, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
