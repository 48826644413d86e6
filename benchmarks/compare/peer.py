"""What the runners of all engines have in common. No engine is imported here; standard library and numpy only."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Peer(Protocol):
    """An engine with a model."""

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """All prompts at once, greedily, exactly ``max_tokens`` new tokens each."""

    def logits(self, token_ids: list[int]) -> npt.NDArray[np.float32] | None:
        """Logits, or log probabilities, after each token: [T, V]; ``None``: this engine does not give them."""


def serve(make_peer: Callable[[str], Peer]) -> None:
    """Load the model named on the command line and answer questions until standard input ends."""
    began = time.perf_counter()
    peer = make_peer(sys.argv[1])
    print(json.dumps({"load_s": time.perf_counter() - began}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if "token_ids" in question:
            logits = peer.logits(question["token_ids"])
            if logits is not None:
                np.save(Path(question["file"]), logits)
            print(json.dumps({"has_logits": logits is not None}), flush=True)
            continue
        began = time.perf_counter()
        outputs = peer.generate(question["prompts"], question["max_tokens"])
        elapsed = time.perf_counter() - began
        lengths = {len(output) for output in outputs}
        assert lengths == {question["max_tokens"]}, f"outputs of {lengths} tokens, not {question['max_tokens']}"
        print(json.dumps({"seconds": elapsed, "outputs": outputs}), flush=True)
