"""A model's files as one value: its configuration, and its tensors under one set of names in one order of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.backends.base import HostTensor
from octavo.errors import ModelFileError
from octavo.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model as it lies on disk, checked: every tensor that the configuration asks for is there, in its shape.

    Attributes:
        path: the ``.gguf`` file, or the Hugging Face folder.
        format: ``gguf`` or ``safetensors``.
        metadata: the GGUF header (it holds the tokeniser and the chat template); empty for a folder.
        tensors: by Hugging Face name (``model.layers.0.self_attn.q_proj.weight``), rows in Hugging Face order. Views of
            the mapped files, except for the projections whose rows GGUF reorders: copies, made when asked for.
        bytes_by_type: bytes of tensor data per encoding, most first: ``{"Q4_1": …, "Q8_0": …, "F32": …}``.
    """

    path: Path
    format: str
    config: ModelConfig
    metadata: Mapping[str, Any]
    tensors: Mapping[str, HostTensor]
    bytes_by_type: Mapping[str, int]


def check_tensors(
    config: ModelConfig, tensors: Mapping[str, HostTensor], names: Mapping[str, str], path: Path
) -> dict[str, int]:
    """Compare a file's tensors with what the configuration asks for; return their bytes per encoding, most first.

    Args:
        tensors: by the file's own names.
        names: Hugging Face name → the file's own, of all that ``config`` asks for.

    Raises:
        ModelFileError: a tensor is missing or has another shape, or a vector is quantised.
    """
    shapes = config.tensor_shapes()
    num_bytes: dict[str, int] = {}
    for name, own_name in names.items():
        if own_name not in tensors:
            raise ModelFileError(path, own_name, "the tensor is missing")
        tensor = tensors[own_name]
        if tensor.shape != shapes[name]:
            problem = f"has shape {list(tensor.shape)}, but the configuration asks for {list(shapes[name])}"
            raise ModelFileError(path, own_name, problem)
        if len(tensor.shape) == 1 and tensor.type.is_quantized:
            raise ModelFileError(path, own_name, f"is a vector, but quantised ({tensor.type.label})")
        num_bytes[tensor.type.label] = num_bytes.get(tensor.type.label, 0) + tensor.num_bytes
    return dict(sorted(num_bytes.items(), key=lambda item: -item[1]))


def refuse_leftovers(path: Path, leftovers: set[str]) -> None:
    """A tensor that nobody asked for means that the model computes something that we would not."""
    if leftovers:
        some = sorted(leftovers)[:5]
        more = f" (and {len(leftovers) - 1} more: {', '.join(some[1:])}…)" if len(leftovers) > 1 else ""
        raise ModelFileError(path, some[0], f"the architecture has no such tensor{more}")


# ---- GGUF's names and rows ----------------------------------------------------------------------------------------

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
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
    """``model.layers.3.mlp.up_proj.weight`` → ``blk.3.ffn_up.weight``."""
    module, kind = name.rsplit(".", 1)
    if not module.startswith("model.layers."):
        return f"{_GGUF_NAMES[module]}.{kind}"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"


class GGUFTensors(Mapping[str, HostTensor]):
    """The tensors of a GGUF file by Hugging Face name, rows in Hugging Face order.

    Llama files pair neighbouring elements of a head for the rotation; Hugging Face and Octavo's ops pair element ``i``
    with ``i + head_dim / 2``. The converter therefore reorders the rows of q and k in files of the ``llama``
    architecture, and only in those; here they go back.
    """

    def __init__(self, config: ModelConfig, tensors: Mapping[str, HostTensor]) -> None:
        self._config = config
        self._tensors = tensors
        self._names = {name: gguf_name(name) for name in config.tensor_shapes()}

    @property
    def names(self) -> Mapping[str, str]:
        """Hugging Face name → GGUF name."""
        return self._names

    def __getitem__(self, name: str) -> HostTensor:
        tensor = self._tensors[self._names[name]]
        if self._config.architecture != "llama" or ".self_attn." not in name:
            return tensor
        if ".q_proj." in name:
            return _in_half_order(tensor, self._config.num_heads, self._config.head_dim)
        if ".k_proj." in name:
            return _in_half_order(tensor, self._config.num_kv_heads, self._config.head_dim)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def half_order(num_heads: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Where each row of a Hugging Face q or k projection lies in a Llama GGUF: int64 [num_heads * head_dim].

    The head of 6 elements ``0 3 1 4 2 5`` (neighbours are pairs) becomes ``0 1 2 3 4 5`` (halves are pairs).
    """
    rows = np.arange(num_heads * head_dim, dtype=np.int64)
    return rows.reshape(num_heads, head_dim // 2, 2).swapaxes(1, 2).ravel()


def _in_half_order(tensor: HostTensor, num_heads: int, head_dim: int) -> HostTensor:
    rows = half_order(num_heads, head_dim)
    if len(tensor.shape) == 2:
        return tensor.take_rows(rows)
    elements = tensor.data.reshape(len(rows), -1)[rows]  # a bias: as many bytes per element as its plain type has
    return HostTensor(tensor.name, tensor.type, tensor.shape, elements.reshape(1, -1))
