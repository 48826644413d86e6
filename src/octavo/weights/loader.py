"""Open a model's files, whatever their format."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from octavo.backends.base import HostTensor
from octavo.errors import ModelFileError, ModelNotFoundError
from octavo.models.config import ModelConfig, gguf_architecture
from octavo.weights.checkpoint import Checkpoint, GGUFTensors, check_tensors, refuse_leftovers
from octavo.weights.gguf import read_gguf
from octavo.weights.json_file import read_json
from octavo.weights.safetensors import read_safetensors, read_sharded_safetensors


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a ``.gguf`` file, or a Hugging Face folder with ``config.json`` and safetensors.

    Headers are read and checked; the tensors' bytes stay on disk until they are used.

    Raises:
        ModelNotFoundError: there is nothing at ``path``, or no model in the folder.
        ModelFileError: a file is damaged or contradicts itself.
        UnsupportedModelError: the model asks for something that Octavo does not have.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if path.is_file():
        return _open_gguf(path)
    raise ModelNotFoundError(f"{path}: there is no such file or folder")


def _open_gguf(path: Path) -> Checkpoint:
    file = read_gguf(path)
    gguf_architecture(file.metadata, path)  # before its tensors, which only a known architecture explains
    config = ModelConfig.from_gguf(file.metadata, file.tensors, path)
    tensors = GGUFTensors(config, file.tensors)
    bytes_by_type = check_tensors(config, file.tensors, tensors.names, path)
    refuse_leftovers(path, set(file.tensors) - set(tensors.names.values()) - {"rope_freqs.weight"})
    return Checkpoint(path, "gguf", config, file.metadata, tensors, bytes_by_type)


def _open_folder(folder: Path) -> Checkpoint:
    config_path = folder / "config.json"
    if not config_path.is_file():
        files = ", ".join(sorted(file.name for file in folder.glob("*.gguf"))[:5])
        hint = f"; name one of its files: {files}" if files else ""
        raise ModelNotFoundError(f"{folder}: the folder has no config.json{hint}")
    generation_path = folder / "generation_config.json"
    generation_config = read_json(generation_path) if generation_path.is_file() else None
    try:
        config = ModelConfig.from_hugging_face(read_json(config_path), generation_config, config_path)
    except RecursionError:  # comparing or showing what json could just parse
        raise ModelFileError(config_path, "JSON", "nests too deep") from None
    config = dataclasses.replace(config, name=_folder_name(folder))
    tensors = _open_safetensors(folder)
    names = {name: name for name in config.tensor_shapes()}
    bytes_by_type = check_tensors(config, tensors, names, folder)
    refuse_leftovers(folder, set(tensors) - set(names) - _ignorable(config, tensors, folder))
    return Checkpoint(folder, "safetensors", config, {}, {name: tensors[name] for name in names}, bytes_by_type)


def _open_safetensors(folder: Path) -> Mapping[str, HostTensor]:
    if (index := folder / "model.safetensors.index.json").is_file():
        return read_sharded_safetensors(index)
    if (single := folder / "model.safetensors").is_file():
        return read_safetensors(single)
    raise ModelNotFoundError(
        f"{folder}: the folder has neither model.safetensors nor model.safetensors.index.json; "
        "save the model in the safetensors format"
    )


def _ignorable(config: ModelConfig, tensors: Mapping[str, HostTensor], folder: Path) -> set[str]:
    """Tensors that say nothing new: precomputed frequencies, and a copy of tied embeddings."""
    ignorable = {name for name in tensors if name.endswith(".rotary_emb.inv_freq")}
    if config.tie_word_embeddings and "lm_head.weight" in tensors:
        if not _are_equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"]):
            problem = "differs from model.embed_tokens.weight, though tie_word_embeddings says that they are one"
            raise ModelFileError(folder, "lm_head.weight", problem)
        ignorable.add("lm_head.weight")
    return ignorable


def _are_equal(one: HostTensor, other: HostTensor, rows_at_once: int = 4096) -> bool:
    if one.type is not other.type or one.shape != other.shape:
        return False
    slabs = (slice(start, start + rows_at_once) for start in range(0, len(one.data), rows_at_once))
    return all(np.array_equal(one.data[slab], other.data[slab]) for slab in slabs)


def _folder_name(folder: Path) -> str:
    """The folder's name; ``org/name`` in the Hugging Face cache (``models--org--name/snapshots/revision``)."""
    folder = folder.absolute()
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.name
