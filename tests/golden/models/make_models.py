"""Write the tiny random models of this folder and what ``transformers`` computes with them.

    python tests/golden/models/make_models.py        (needs torch, transformers and gguf)

Per model, ``expected.npz`` holds ``NAME.prompt`` int32 [48], ``NAME.logits`` float32 [48, V] and ``NAME.greedy``
int32 [64], all from float32 arithmetic on exactly the stored weights (of a quantised file: the dequantised ones).

The prompt is the one, of many random ones, whose greedy continuation keeps the largest distance between best and second
best logit: a backend that rounds differently must still find the same 64 tokens.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

FOLDER = Path(__file__).parent
PROMPT_LEN = 48
NUM_GREEDY = 64
NUM_CANDIDATES = 1024
MIN_DISTINCT = 12
"""Different tokens that a continuation must have, so that it is not one short loop."""

COMMON: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS = {
    "llama": LlamaConfig(**COMMON, tie_word_embeddings=True),
    "llama3": LlamaConfig(**COMMON, tie_word_embeddings=False, rope_parameters=LLAMA3_ROPE),
    "mistral": MistralConfig(**COMMON, head_dim=32, tie_word_embeddings=False, sliding_window=12),
    "qwen2": Qwen2Config(**COMMON, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**{**COMMON, "num_attention_heads": 4}, head_dim=32, tie_word_embeddings=True),
}
GGUF_MODULES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GGUF_OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def main() -> None:
    expected: dict[str, np.ndarray] = {}
    for seed, (name, config) in enumerate(CONFIGS.items()):
        model = make_model(config, seed)
        save(model, FOLDER / name)
        expected |= expect(name, load(FOLDER / name))
    save(load(FOLDER / "llama").to(torch.bfloat16), FOLDER / "llama-bf16")
    expected |= expect("llama-bf16", load(FOLDER / "llama-bf16"))
    q8_0, q4_1 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1
    expected |= expect("llama3-q8_0.gguf", save_gguf("llama3", "llama3-q8_0.gguf", q8_0, mixed_with=q8_0))
    expected |= expect("llama-q4_1.gguf", save_gguf("llama", "llama-q4_1.gguf", q4_1, mixed_with=q8_0))
    np.savez_compressed(FOLDER / "expected.npz", **expected)


def make_model(config: Any, seed: int) -> PreTrainedModel:
    """Random weights: layers that matter as much as the embedding; norms and biases off neutral.

    Logits come out at about 0.03, of which rounding all matmul inputs, keys and values to bfloat16 moves some by a
    twentieth: less than the 2e-3 that a backend is allowed.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.6, 1.4)
            elif any(part in name for part in ("embed_tokens", "lm_head", "o_proj", "down_proj")):
                parameter.normal_(std=0.0035)
            elif name.endswith("bias"):
                parameter.normal_(std=0.2)
            else:
                parameter.normal_(std=0.12)
    return model


def save(model: PreTrainedModel, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def load(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def expect(name: str, model: PreTrainedModel) -> dict[str, np.ndarray]:
    """Choose the prompt, as the top of this file says, and record what follows."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(model.config.vocab_size, (NUM_CANDIDATES, PROMPT_LEN), generator=generator)
    ids, smallest_gap = prompts, torch.full((NUM_CANDIDATES,), torch.inf)
    cache, new = None, prompts
    for _ in range(NUM_GREEDY):
        output = model(new, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        best_two = output.logits[:, -1].topk(2)
        smallest_gap = torch.minimum(smallest_gap, best_two.values[:, 0] - best_two.values[:, 1])
        new = best_two.indices[:, :1]
        ids = torch.cat([ids, new], dim=1)
    distinct = torch.tensor([len(set(row[PROMPT_LEN:].tolist())) for row in ids])
    chosen = int(torch.where(distinct >= MIN_DISTINCT, smallest_gap, -1.0).argmax())
    logits = model(prompts[chosen][None]).logits[0]
    print(f"{name}: logits ± {logits.std():.3f}, smallest gap {smallest_gap[chosen]:.4f}, {distinct[chosen]} distinct")
    return {
        f"{name}.prompt": prompts[chosen].numpy().astype(np.int32),
        f"{name}.logits": logits.numpy(),
        f"{name}.greedy": ids[chosen, PROMPT_LEN:].numpy().astype(np.int32),
    }


def save_gguf(
    source: str, file_name: str, type: gguf.GGMLQuantizationType, mixed_with: gguf.GGMLQuantizationType
) -> PreTrainedModel:
    """Write a Llama folder as GGUF: matrices of ``type``, but v_proj and the embedding of ``mixed_with``.

    Returns the model with the weights that the file holds, dequantised.
    """
    model = load(FOLDER / source)
    config = model.config
    writer = gguf.GGUFWriter(FOLDER / file_name, "llama")
    writer.add_name(source)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    if config.rope_parameters["rope_type"] == "llama3":
        plain = config.rope_parameters["rope_theta"] ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())

    stored = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        tensor_type = mixed_with if "v_proj" in name or "embed_tokens" in name else type
        if values.ndim == 1:
            tensor_type = gguf.GGMLQuantizationType.F32
        num_heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(
            name.split(".")[-2]
        )
        written = values if num_heads is None else pair_neighbours(values, num_heads)
        blocks = gguf.quants.quantize(written, tensor_type)
        writer.add_tensor(gguf_name(name), blocks, raw_dtype=tensor_type)
        kept = gguf.quants.dequantize(blocks, tensor_type)
        stored[name] = torch.from_numpy(kept if num_heads is None else pair_halves(kept, num_heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.load_state_dict(stored, strict=False)
    return model


def gguf_name(name: str) -> str:
    if name in GGUF_OUTER_NAMES:
        return GGUF_OUTER_NAMES[name]
    _, _, layer, module = name.split(".", 3)
    module, kind = module.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_MODULES[module]}.{kind}"


def pair_neighbours(matrix: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows from the "half" form of rotation, where ``i`` pairs with ``i + d / 2``, to the one that pairs neighbours."""
    return matrix.reshape(num_heads, 2, -1, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)


def pair_halves(matrix: np.ndarray, num_heads: int) -> np.ndarray:
    """The way back."""
    return np.ascontiguousarray(matrix.reshape(num_heads, -1, 2, matrix.shape[1]).swapaxes(1, 2)).reshape(matrix.shape)


if __name__ == "__main__":
    main()
