"""The bfloat16 twin of a GGUF model: a Hugging Face folder for the engines that read no GGUF.

    python benchmarks/compare/make_hf_twin.py FOLDER [--model default]

Weights are dequantised exactly and rounded to bfloat16. There is no tokenizer in it: the comparison hands over token
ids.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.backends.base import HostTensor
from octavo.models.config import ModelConfig
from octavo.weights.loader import open_checkpoint
from octavo.weights.sources import resolve_model

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def hugging_face_config(config: ModelConfig) -> dict[str, Any]:
    """``config.json`` of a model whose rotary angles are not rescaled."""
    if config.rope.scaling is not None:
        raise SystemExit("a twin of a model with rescaled rotary angles is not written; use another")
    return {
        "architectures": [ARCHITECTURES[config.architecture]],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.qkv_bias,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Bits of the nearest bfloat16, ties to even; weights are finite."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(tensors: Mapping[str, HostTensor], path: Path) -> None:
    """One file: the length of the header, the header in JSON, then the tensors end to end."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + 2 * int(np.prod(tensor.shape))
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(to_bfloat16(tensor.dequantize()).tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="to make")
    parser.add_argument("--model", default="default", help="as octavo run takes it")
    arguments = parser.parse_args()

    checkpoint = open_checkpoint(resolve_model(arguments.model))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(hugging_face_config(checkpoint.config), indent=2)
    (arguments.folder / "config.json").write_text(config + "\n", encoding="utf-8")
    write_safetensors(checkpoint.tensors, arguments.folder / "model.safetensors")


if __name__ == "__main__":
    main()
