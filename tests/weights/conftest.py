"""Tiny model files, written field by field so that a test can break any of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

GGUF_NUMBERS = {
    "u8": (0, "<B"),
    "i8": (1, "<b"),
    "u16": (2, "<H"),
    "i16": (3, "<h"),
    "u32": (4, "<I"),
    "i32": (5, "<i"),
}
GGUF_NUMBERS |= {"f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d")}


@dataclass
class GGUFTensor:
    """``shape`` is outermost first; ``offset=None`` puts the data behind the previous tensor's."""

    name: str
    shape: Sequence[int]
    type: int
    data: bytes
    offset: int | None = None


@dataclass
class GGUFWriter:
    """Values of ``metadata`` are ``(type name, value)``; an array's type is written ``[u32]``."""

    metadata: dict[str, tuple[str, Any]] = field(default_factory=dict)
    tensors: list[GGUFTensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32
    num_tensors: int | None = None
    num_pairs: int | None = None

    def to_bytes(self) -> bytes:
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_pairs = len(self.metadata) if self.num_pairs is None else self.num_pairs
        header = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_pairs)
        for key, (kind, value) in self.metadata.items():
            header += self.string(key) + struct.pack("<I", self.type_number(kind)) + self.value(kind, value)
        body = b""
        for tensor in self.tensors:
            body += bytes(-len(body) % self.alignment)
            offset = len(body) if tensor.offset is None else tensor.offset
            header += self.string(tensor.name) + struct.pack("<I", len(tensor.shape))
            header += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
            header += struct.pack("<IQ", tensor.type, offset)
            body += tensor.data
        return header + bytes(-len(header) % self.alignment) + body

    @staticmethod
    def string(text: str | bytes) -> bytes:
        encoded = text.encode() if isinstance(text, str) else text
        return struct.pack("<Q", len(encoded)) + encoded

    @staticmethod
    def type_number(kind: str) -> int:
        return 9 if kind.startswith("[") else 8 if kind == "str" else GGUF_NUMBERS[kind][0]

    def value(self, kind: str, value: Any) -> bytes:
        if kind.startswith("["):
            inner = kind[1:-1]
            elements = b"".join(self.value(inner, element) for element in value)
            return struct.pack("<IQ", self.type_number(inner), len(value)) + elements
        if kind == "str":
            return self.string(value)
        return struct.pack(GGUF_NUMBERS[kind][1], value)


GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    name = name.replace("model.embed_tokens", "token_embd").replace("model.norm", "output_norm")
    name = name.replace("lm_head", "output").replace("model.layers.", "blk.")
    for hugging_face, gguf in GGUF_PARTS.items():
        name = name.replace(hugging_face, gguf)
    return name


HUGGING_FACE_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_arrays(biases: bool = False, norms: bool = False, tied: bool = False) -> dict[str, np.ndarray]:
    """Random float32 tensors of the tiny model by Hugging Face name."""
    rng = np.random.default_rng(7)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (11, 8), "model.norm.weight": (8,)}
    if not tied:
        shapes["lm_head.weight"] = (11, 8)
    for i in range(2):
        layer: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (8,), "post_attention_layernorm.weight": (8,)}
        layer |= {"self_attn.q_proj.weight": (24, 8), "self_attn.k_proj.weight": (12, 8)}
        layer |= {"self_attn.v_proj.weight": (12, 8), "self_attn.o_proj.weight": (8, 24)}
        layer |= {"mlp.gate_proj.weight": (12, 8), "mlp.up_proj.weight": (12, 8), "mlp.down_proj.weight": (8, 12)}
        if biases:
            layer |= {f"self_attn.{p}_proj.bias": (n,) for p, n in (("q", 24), ("k", 12), ("v", 12))}
        if norms:
            layer |= {"self_attn.q_norm.weight": (6,), "self_attn.k_norm.weight": (6,)}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def converter_order(array: np.ndarray, num_heads: int) -> np.ndarray:
    """What the public converter does to q and k of Llama models, written as it is described: halves to neighbours."""
    head = array.reshape(num_heads, 2, array.shape[0] // num_heads // 2, *array.shape[1:])
    return head.swapaxes(1, 2).reshape(array.shape)


def tiny_gguf(architecture: str = "llama", arrays: Mapping[str, np.ndarray] | None = None) -> GGUFWriter:
    """A sound file; llama's q and k in the order of the converter."""
    arrays = tiny_arrays() if arrays is None else arrays
    writer = GGUFWriter(metadata={"general.architecture": ("str", architecture), "general.name": ("str", "Tiny")})
    numbers = {"block_count": 2, "context_length": 64, "embedding_length": 8, "feed_forward_length": 12}
    numbers |= {"attention.head_count": 4, "attention.head_count_kv": 2}
    numbers |= {"attention.key_length": 6, "attention.value_length": 6, "rope.dimension_count": 6}
    writer.metadata |= {f"{architecture}.{name}": ("u32", value) for name, value in numbers.items()}
    writer.metadata[f"{architecture}.attention.layer_norm_rms_epsilon"] = ("f32", 1e-5)
    writer.metadata |= {"tokenizer.ggml.bos_token_id": ("u32", 1), "tokenizer.ggml.eos_token_id": ("u32", 2)}
    writer.metadata["tokenizer.ggml.tokens"] = ("[str]", [f"t{i}" for i in range(11)])
    for name, array in arrays.items():
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            array = converter_order(array, 4 if "q_proj" in name else 2)
        writer.tensors.append(GGUFTensor(gguf_name(name), array.shape, 0, array.tobytes()))
    return writer


def safetensors_bytes(header: Mapping[str, Any], data: bytes) -> bytes:
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def encode_safetensors(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], bytes]:
    """Header and data of float32 (``F32``), float16 (``F16``) or uint16 (``BF16`` bits) arrays."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in arrays.items():
        dtype = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int64": "I64"}[str(array.dtype)]
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    return header, data


def write_folder(
    folder: Path, arrays: Mapping[str, np.ndarray] | None = None, num_shards: int = 1, **config: Any
) -> Path:
    """A Hugging Face folder of the tiny model; keywords change ``config.json``."""
    arrays = tiny_arrays() if arrays is None else arrays
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(HUGGING_FACE_CONFIG | config))
    if num_shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(*encode_safetensors(arrays)))
        return folder
    weight_map = {}
    for shard in range(num_shards):
        file_name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = {name: arrays[name] for name in list(arrays)[shard::num_shards]}
        (folder / file_name).write_bytes(safetensors_bytes(*encode_safetensors(part)))
        weight_map |= dict.fromkeys(part, file_name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


@pytest.fixture(scope="session")
def files() -> SimpleNamespace:
    """All of the above."""
    return SimpleNamespace(
        GGUFTensor=GGUFTensor,
        GGUFWriter=GGUFWriter,
        HUGGING_FACE_CONFIG=HUGGING_FACE_CONFIG,
        encode_safetensors=encode_safetensors,
        safetensors_bytes=safetensors_bytes,
        tiny_arrays=tiny_arrays,
        tiny_gguf=tiny_gguf,
        write_folder=write_folder,
    )


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    """Write bytes to a file and return its path."""

    def write_bytes(data: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write_bytes
