"""From an architecture's name to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from octavo.backends.base import Array, Backend, Batch, HostTensor, KVCache, KVCacheSpec
from octavo.errors import UnsupportedModelError
from octavo.models.config import ModelConfig
from octavo.models.llama import LlamaModel
from octavo.models.mistral import MistralModel
from octavo.models.qwen2 import Qwen2Model
from octavo.models.qwen3 import Qwen3Model


class Model(Protocol):
    """What the executor asks of a model."""

    config: ModelConfig

    def forward(self, batch: Batch, kv_cache: KVCache) -> Array:
        """One pass over the batch's new tokens → hidden states after the last norm, float32 [T, H]."""

    def compute_logits(self, hidden: Array) -> Array:
        """Hidden states [S, H] → logits, float32 [S, V]."""

    def kv_cache_spec(self, num_blocks: int, block_size: int, dtype: str) -> KVCacheSpec:
        """The cache that :meth:`forward` needs."""


ARCHITECTURES: Mapping[str, type[LlamaModel]] = {
    "llama": LlamaModel,
    "mistral": MistralModel,
    "qwen2": Qwen2Model,
    "qwen3": Qwen3Model,
}


def build_model(config: ModelConfig, tensors: Mapping[str, HostTensor], backend: Backend, max_model_len: int) -> Model:
    """The model of ``config.architecture``, its weights brought into the backend's memory.

    Args:
        tensors: the checkpoint, by Hugging Face names, complete as ``config.tensor_shapes()`` lists it.
        max_model_len: longest request, in tokens.

    Raises:
        UnsupportedModelError: nobody has written that architecture yet.
    """
    if config.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModelError(f"architecture {config.architecture} is none of {known}")
    return ARCHITECTURES[config.architecture](config, tensors, backend, max_model_len)
