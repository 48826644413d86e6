import json
import lzma
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from octavo.tokenization.tokenizer import Tokenizer

GOLDEN = Path(__file__).parent.parent / "golden" / "tokenization"


@pytest.fixture(scope="session")
def smollm2_metadata() -> dict[str, Any]:
    """The ``tokenizer.*`` keys of the default model's file."""
    metadata: dict[str, Any] = json.loads(lzma.decompress((GOLDEN / "smollm2_vocabulary.json.xz").read_bytes()))
    return metadata


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_metadata, "smollm2.gguf")


SENTENCEPIECE_TEXT = """the theory of the thing is that they gather there and then some, aaaa aaa aaaaaaa ==== ---- abab
ababab the other one ran an anchor on and on; no one knew the answer, nnnn n nn    spaces   between  words"""


@pytest.fixture(scope="session")
def sentencepiece_metadata() -> dict[str, Any]:
    """A small SentencePiece vocabulary, trained here: bytes, then pieces by falling frequency, then characters."""
    symbols = list("▁" + SENTENCEPIECE_TEXT.replace(" ", "▁"))
    characters = sorted(set(symbols))
    pieces: list[str] = []
    for _ in range(120):
        pairs = Counter(left + right for left, right in pairwise(symbols) if "\n" not in left + right)
        best = max(pairs, key=lambda piece: (pairs[piece], piece))
        pieces.append(best)
        place = 0
        while place < len(symbols) - 1:
            if symbols[place] + symbols[place + 1] == best:
                symbols[place : place + 2] = [best]
            place += 1
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *characters]
    tokens = list(dict.fromkeys(token for token in tokens if token != "\n"))
    types = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(tokens) - 259)],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(sentencepiece_metadata, "small.gguf")
