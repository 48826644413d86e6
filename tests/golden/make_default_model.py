"""Write what the default model, computed in float32 by the reference backend, expects after each of 2,000 tokens.

python tests/golden/make_default_model.py        (about a minute)
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY / "benchmarks"), str(REPOSITORY / "tests")]

import fidelity  # noqa: E402
from support.top_distributions import TopDistributions  # noqa: E402

from octavo.backends.reference import ReferenceBackend  # noqa: E402
from octavo.weights.loader import open_checkpoint  # noqa: E402
from octavo.weights.sources import resolve_model  # noqa: E402

checkpoint = open_checkpoint(resolve_model("default"))
token_ids = fidelity.read_text(checkpoint, 2000)
parts = [TopDistributions.from_logits(logits) for logits in fidelity.prefill(checkpoint, ReferenceBackend(), token_ids)]
whole = TopDistributions(
    np.concatenate([part.ids for part in parts]), np.concatenate([part.logprobs for part in parts])
)
whole.save(Path(__file__).with_name("default_model.npz"), token_ids)
