"""How far a backend's answers are from the same model in float32, weights dequantised exactly.

    python benchmarks/fidelity.py [--backend native] [--model default] [--num-tokens 2000] [--json]
    python benchmarks/fidelity.py --kv-cache-dtype int8       # also how far it is from the backend's own cache
    python benchmarks/fidelity.py --model TWIN --quantization int8      # to the model as it was before

Both read the same text. At each position, KL is the divergence of the backend's next-token distribution from the
float32 reference's, in nats; top-1 agreement is the share of positions where the most likely token is the same.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from octavo.backends.base import Backend, Batch
from octavo.backends.reference import ReferenceBackend
from octavo.backends.registry import create_backend
from octavo.config import BackendConfig
from octavo.models.registry import build_model
from octavo.tokenization.tokenizer import load_tokenizer
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.loader import open_checkpoint
from octavo.weights.quantize import quantize_checkpoint
from octavo.weights.sources import resolve_model

TEXT = Path(__file__).parent / "data" / "fidelity.txt"
CHUNK_SIZE = 250
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Fidelity:
    """Distance between two models over a text.

    Attributes:
        mean_kl: nats per position.
        max_kl: of the worst position.
        top1_agreement: share of positions, 0 to 1.
    """

    num_tokens: int
    mean_kl: float
    max_kl: float
    top1_agreement: float


def read_text(checkpoint: Checkpoint, num_tokens: int, text: Path = TEXT) -> np.ndarray:
    """The first tokens of a text: int32 [num_tokens]."""
    token_ids = load_tokenizer(checkpoint).encode(text.read_text(encoding="utf-8"))
    if len(token_ids) < num_tokens:
        raise SystemExit(f"{text} has {len(token_ids)} tokens only; ask for fewer than {num_tokens}")
    return np.array(token_ids[:num_tokens], np.int32)


def prefill(
    checkpoint: Checkpoint, backend: Backend, token_ids: np.ndarray, kv_cache_dtype: str | None = None
) -> Iterator[np.ndarray]:
    """Logits [chunk, V] of one request, chunk after chunk. Its blocks lie in order, so a slot is a position."""
    model = build_model(checkpoint.config, checkpoint.tensors, backend, max_model_len=len(token_ids))
    num_blocks = -(-len(token_ids) // BLOCK_SIZE)
    dtype = kv_cache_dtype or backend.default_kv_cache_dtype
    kv_cache = backend.allocate_kv_cache(model.kv_cache_spec(num_blocks, BLOCK_SIZE, dtype))
    for start in range(0, len(token_ids), CHUNK_SIZE):
        end = min(start + CHUNK_SIZE, len(token_ids))
        positions = np.arange(start, end, dtype=np.int32)
        batch = Batch(
            input_ids=backend.from_host(token_ids[start:end]),
            positions=backend.from_host(positions),
            slot_mapping=backend.from_host(positions),
            block_tables=backend.from_host(np.arange(num_blocks, dtype=np.int32)[np.newaxis]),
            seq_lens=backend.from_host(np.array([end], np.int32)),
            query_start_loc=backend.from_host(np.array([0, end - start], np.int32)),
            num_tokens=end - start,
            num_requests=1,
            max_query_len=end - start,
            max_seq_len=end,
        )
        yield backend.to_host(model.compute_logits(model.forward(batch, kv_cache)))


def measure(expected: Iterable[np.ndarray], actual: Iterable[np.ndarray]) -> Fidelity:
    """Compare logits, position by position."""
    divergences, agreements = [], []
    for wanted, got in zip(expected, actual, strict=True):
        divergences.append(kl_divergence(wanted, got))
        agreements.append(wanted.argmax(axis=1) == got.argmax(axis=1))
    kl, agreement = np.concatenate(divergences), np.concatenate(agreements)
    return Fidelity(len(kl), float(kl.mean()), float(kl.max()), float(agreement.mean()))


def kl_divergence(expected: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """KL(expected ‖ actual) of logits [T, V], in nats: [T].

    With ``d`` the difference of the logits and ``p`` the expected distribution, it is ``log Σ p exp(d) - Σ p d``, which
    needs no logarithm of either distribution.
    """
    probabilities = np.exp(expected - expected.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    difference = actual - expected
    difference -= np.einsum("tv,tv->t", probabilities, difference)[:, np.newaxis]  # exp stays near 1
    excess = np.expm1(difference)
    return np.log1p(np.einsum("tv,tv->t", probabilities, excess, dtype=np.float64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="native", help="native, torch, reference, or reference-native")
    parser.add_argument("--model", default="default", help="as octavo run takes it")
    parser.add_argument("--kv-cache-dtype", help="bfloat16, float32 or int8 (default: the backend's own)")
    parser.add_argument("--quantization", help="int8 or int4: of the backend's model, not of the float32 one")
    parser.add_argument("--tokenizer", help="model whose tokenizer reads the text (default: the model's own)")
    parser.add_argument("--num-tokens", type=int, default=2000)
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--json", action="store_true", help="print JSON objects")
    arguments = parser.parse_args()

    checkpoint = open_checkpoint(resolve_model(arguments.model))
    reader = checkpoint if arguments.tokenizer is None else open_checkpoint(resolve_model(arguments.tokenizer))
    token_ids = read_text(reader, arguments.num_tokens, arguments.text)
    given = checkpoint
    if arguments.quantization is not None:
        given = quantize_checkpoint(checkpoint, arguments.quantization)
    if arguments.backend == "reference-native":
        backend: Backend = ReferenceBackend("native")
    else:
        backend = create_backend(BackendConfig(backend=arguments.backend))
    own_dtype = backend.default_kv_cache_dtype
    dtype = arguments.kv_cache_dtype or own_dtype
    logits = list(prefill(given, backend, token_ids, dtype))
    reference = ReferenceBackend()
    rows = {"float32 model": measure(prefill(checkpoint, reference, token_ids, "float32"), logits)}
    if dtype != own_dtype:
        rows[f"{own_dtype} cache"] = measure(prefill(given, backend, token_ids, own_dtype), logits)
    for against, fidelity in rows.items():
        if arguments.json:
            names = {
                "model": arguments.model,
                "backend": arguments.backend,
                "kv_cache_dtype": dtype,
                "against": against,
            }
            print(json.dumps({"benchmark": "fidelity", **names, **asdict(fidelity)}))
        else:
            print(
                f"{arguments.backend}, {dtype} cache, {fidelity.num_tokens} tokens, to the {against}: "
                f"mean KL {fidelity.mean_kl:.2e}, worst {fidelity.max_kl:.2e}, "
                f"top-1 agreement {fidelity.top1_agreement:.2%}"
            )


if __name__ == "__main__":
    main()
