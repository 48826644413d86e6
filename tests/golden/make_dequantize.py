"""Make ``dequantize.npz``: random blocks of every type, and what the ``gguf`` package decodes them to.

    pip install gguf && python tests/golden/make_dequantize.py

Bytes are uniform, so every code, scale and bit pattern turns up; only the fp16 scales are replaced by ordinary numbers
(random bits would make some of them infinite).
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

ROWS, BLOCKS_PER_ROW = 3, 2
HALF_OFFSETS = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
}
"""Where the fp16 numbers of a block lie."""


def random_blocks(name: str, block_bytes: int, rng: np.random.Generator) -> np.ndarray:
    blocks = rng.integers(0, 256, (ROWS * BLOCKS_PER_ROW, block_bytes), dtype=np.uint8)
    for offset in HALF_OFFSETS[name]:
        scales = rng.normal(scale=0.05, size=len(blocks)).astype(np.float16)
        blocks[:, offset : offset + 2] = scales[:, None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


def main() -> None:
    rng = np.random.default_rng(20250)
    arrays: dict[str, np.ndarray] = {}
    for name in ("F32", "F16", "BF16", *HALF_OFFSETS):
        kind = gguf.GGMLQuantizationType[name]
        if name in HALF_OFFSETS:
            data = random_blocks(name, gguf.GGML_QUANT_SIZES[kind][1], rng)
        else:
            values = rng.normal(size=(ROWS, 7)).astype(np.float32)
            data = gguf.quants.quantize(values, kind).view(np.uint8).reshape(ROWS, -1)
        arrays[f"{name}.data"] = data
        arrays[f"{name}.expected"] = gguf.quants.dequantize(data, kind).astype(np.float32).reshape(ROWS, -1)
    np.savez_compressed(Path(__file__).with_name("dequantize.npz"), **arrays)


if __name__ == "__main__":
    main()
