"""One set of names and one order of rows, whatever the format; a tensor too few, too many or misshapen is named."""

from __future__ import annotations

import json

import numpy as np
import pytest

from octavo.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from octavo.models.config import FactorScaling
from octavo.weights.checkpoint import half_order
from octavo.weights.loader import open_checkpoint


def assert_same_tensors(checkpoint, arrays) -> None:
    assert set(checkpoint.tensors) == set(arrays)
    for name, array in arrays.items():
        assert checkpoint.tensors[name].shape == array.shape
        np.testing.assert_array_equal(checkpoint.tensors[name].dequantize(), array, err_msg=name)


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize(
    "model_type, parts",
    [
        ("llama", {}),
        ("mistral", {}),
        ("qwen2", {"biases": True}),
        ("qwen3", {"norms": True}),
        ("llama", {"tied": True}),
    ],
)
def test_a_folder_is_read_by_its_own_names(files, tmp_path, model_type: str, parts: dict, num_shards: int) -> None:
    arrays = files.tiny_arrays(**parts)
    settings = {"architectures": None, "model_type": model_type, "tie_word_embeddings": "tied" in parts}
    checkpoint = open_checkpoint(files.write_folder(tmp_path / "tiny", arrays, num_shards, **settings))
    assert_same_tensors(checkpoint, arrays)
    assert (checkpoint.format, checkpoint.config.architecture, checkpoint.config.name) == (
        "safetensors",
        model_type,
        "tiny",
    )
    assert checkpoint.config.num_parameters == sum(array.size for array in arrays.values())
    assert checkpoint.bytes_by_type == {"F32": 4 * checkpoint.config.num_parameters}


@pytest.mark.parametrize(
    "architecture, parts",
    [
        ("llama", {}),
        ("llama", {"biases": True}),
        ("llama", {"tied": True}),
        ("qwen2", {"biases": True}),
        ("qwen3", {"norms": True}),
    ],
)
def test_a_gguf_file_gives_the_names_and_rows_of_the_folder(files, write, architecture: str, parts: dict) -> None:
    arrays = files.tiny_arrays(**parts)
    checkpoint = open_checkpoint(write(files.tiny_gguf(architecture, arrays).to_bytes()))
    assert_same_tensors(checkpoint, arrays)
    config = checkpoint.config
    assert (checkpoint.format, config.name, config.architecture) == ("gguf", "Tiny", architecture)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (4, 2, 6, 11)
    assert (config.qkv_bias, config.qk_norm, config.tie_word_embeddings) == (
        "biases" in parts,
        "norms" in parts,
        "tied" in parts,
    )
    assert checkpoint.metadata["tokenizer.ggml.tokens"][10] == "t10"


def test_pairs_of_neighbours_become_halves() -> None:
    assert half_order(num_heads=2, head_dim=6).tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def with_wide_rows(writer):
    """The same model with a hidden size of 32, so that its rows can be blocks; all zero."""
    writer.metadata["llama.embedding_length"] = ("u32", 32)
    for tensor in writer.tensors:
        tensor.shape = tuple(32 if size == 8 else size for size in tensor.shape)
        tensor.data = bytes(4 * int(np.prod(tensor.shape)))
    return writer, {tensor.name: tensor for tensor in writer.tensors}


def test_quantised_rows_of_q_move_whole(files, write) -> None:
    writer, tensors = with_wide_rows(files.tiny_gguf())
    q = tensors["blk.1.attn_q.weight"]
    q.type, q.data = 2, b"".join(bytes([row]) * 18 for row in range(24))
    checkpoint = open_checkpoint(write(writer.to_bytes()))
    moved = checkpoint.tensors["model.layers.1.self_attn.q_proj.weight"]
    assert (moved.data == moved.data[:, :1]).all()
    assert moved.data[:, 0].tolist() == [6 * head + i for head in range(4) for i in (0, 2, 4, 1, 3, 5)]
    assert list(checkpoint.bytes_by_type) == ["F32", "Q4_0"]


def test_a_quantised_norm_is_refused(files, write) -> None:
    writer, tensors = with_wide_rows(files.tiny_gguf())
    tensors["output_norm.weight"].type, tensors["output_norm.weight"].data = 8, bytes(34)
    with pytest.raises(ModelFileError, match=r"output_norm\.weight: is a vector, but quantised \(Q8_0\)"):
        open_checkpoint(write(writer.to_bytes()))


@pytest.mark.parametrize(
    "missing", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight", "lm_head.weight", "model.embed_tokens.weight"]
)
def test_a_missing_tensor_is_named(files, tmp_path, write, missing: str) -> None:
    arrays = files.tiny_arrays()
    del arrays[missing]
    with pytest.raises(ModelFileError, match=f"{missing}: the tensor is missing"):
        open_checkpoint(files.write_folder(tmp_path / "tiny", arrays))
    writer = files.tiny_gguf(arrays=arrays)
    if missing == "lm_head.weight":
        assert open_checkpoint(write(writer.to_bytes())).config.tie_word_embeddings
    else:
        with pytest.raises(
            ModelFileError, match=r"(token_embd|output_norm|blk\.1\.ffn_up)\.weight: the tensor is missing"
        ):
            open_checkpoint(write(writer.to_bytes()))


def test_a_shape_against_the_configuration_is_named(files, tmp_path, write) -> None:
    arrays = files.tiny_arrays()
    arrays["model.layers.0.self_attn.k_proj.weight"] = np.zeros((8, 8), np.float32)
    message = r"has shape \[8, 8\], but the configuration asks for \[12, 8\]"
    with pytest.raises(ModelFileError, match=rf"layers\.0\.self_attn\.k_proj\.weight: {message}"):
        open_checkpoint(files.write_folder(tmp_path / "tiny", arrays))
    with pytest.raises(ModelFileError, match=rf"blk\.0\.attn_k\.weight: {message}"):
        open_checkpoint(write(files.tiny_gguf(arrays=arrays).to_bytes()))


@pytest.mark.parametrize("extra", ["model.layers.0.self_attn.o_proj.bias", "model.layers.2.mlp.up_proj.weight"])
def test_a_tensor_that_nobody_asked_for_is_named(files, tmp_path, write, extra: str) -> None:
    arrays = files.tiny_arrays() | {extra: np.zeros(8, np.float32)}
    with pytest.raises(ModelFileError, match=f"{extra}: the architecture has no such tensor"):
        open_checkpoint(files.write_folder(tmp_path / "tiny", arrays))
    with pytest.raises(ModelFileError, match=r"blk\.[02]\.(attn_output|ffn_up)\.\w+: the architecture has no such"):
        open_checkpoint(write(files.tiny_gguf(arrays=arrays).to_bytes()))


def test_precomputed_frequencies_are_no_surprise(files, tmp_path) -> None:
    arrays = files.tiny_arrays()
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(3, np.float32)}
    assert_same_tensors(open_checkpoint(files.write_folder(tmp_path / "tiny", arrays | extra)), arrays)


def test_a_copy_of_tied_embeddings_must_be_one(files, tmp_path) -> None:
    arrays = files.tiny_arrays(tied=True)
    copy = {"lm_head.weight": arrays["model.embed_tokens.weight"].copy()}
    folder = files.write_folder(tmp_path / "tiny", arrays | copy, tie_word_embeddings=True)
    assert_same_tensors(open_checkpoint(folder), arrays)
    copy["lm_head.weight"][10, 7] += 1
    files.write_folder(folder, arrays | copy, tie_word_embeddings=True)
    with pytest.raises(ModelFileError, match=r"lm_head\.weight: differs from model\.embed_tokens\.weight"):
        open_checkpoint(folder)


def test_rope_factors_come_from_their_tensor(files, write) -> None:
    writer = files.tiny_gguf()
    factors = np.array([1, 2.5, 8], np.float32)
    writer.tensors.append(files.GGUFTensor("rope_freqs.weight", (3,), 0, factors.tobytes()))
    assert open_checkpoint(write(writer.to_bytes())).config.rope.scaling == FactorScaling((1.0, 2.5, 8.0))
    for wrong, message in (
        (np.array([1, 0, 8], np.float32), "every factor must be a positive number"),
        (np.array([1, np.nan, 8], np.float32), "every factor must be a positive number"),
        (np.array([1, 2], np.float32), r"must be 3 plain numbers, not F32 \[2\]"),
    ):
        writer.tensors[-1] = files.GGUFTensor("rope_freqs.weight", wrong.shape, 0, wrong.tobytes())
        with pytest.raises(ModelFileError, match=f"rope_freqs.weight: {message}"):
            open_checkpoint(write(writer.to_bytes()))


def test_an_unknown_architecture_is_named_before_its_tensors(files, write) -> None:
    writer = files.tiny_gguf("mamba")
    writer.tensors = [files.GGUFTensor("token_embd.weight", (256,), 16, bytes(66))]
    with pytest.raises(UnsupportedModelError, match=r"general\.architecture: 'mamba' is none of llama, qwen2, qwen3"):
        open_checkpoint(write(writer.to_bytes()))


def test_a_path_that_leads_to_no_model_says_so(files, tmp_path) -> None:
    with pytest.raises(ModelNotFoundError, match="there is no such file or folder"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(ModelNotFoundError, match=r"the folder has no config\.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "some.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"name one of its files: some\.gguf"):
        open_checkpoint(tmp_path)
    folder = files.write_folder(tmp_path / "tiny")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelNotFoundError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        open_checkpoint(folder)


def test_a_folder_of_the_hub_cache_is_named_as_on_the_hub(files, tmp_path) -> None:
    folder = files.write_folder(tmp_path / "models--org--some-model" / "snapshots" / "0123abcd")
    assert open_checkpoint(folder).config.name == "org/some-model"


def test_json_that_nests_too_deep_is_refused(files, tmp_path) -> None:
    folder = files.write_folder(tmp_path / "tiny")
    for depth in (500, 900, 990, 100_000):
        nested = '{"model_type": "llama", "rope_scaling": ' + '{"a":' * depth + "1" + "}" * depth
        twin = nested.replace('{"model_type": "llama", "rope_scaling"', ', "rope_parameters"', 1)
        rest = json.dumps({key: value for key, value in files.HUGGING_FACE_CONFIG.items() if key != "model_type"})
        (folder / "config.json").write_text(nested + twin + ", " + rest[1:])
        with pytest.raises((ModelFileError, UnsupportedModelError), match=r"config\.json: "):
            open_checkpoint(folder)
