"""What a model costs: the sizes that decide how many bytes and operations a step takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a dense decoder-only transformer with grouped-query attention and a gated MLP.

    Attributes:
        bytes_per_weight: as stored and streamed; below 2 for quantised weights.
        bytes_per_kv_element: of the KV cache.
    """

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    bytes_per_weight: float = 2.0
    bytes_per_kv_element: float = 2.0

    @property
    def num_layer_weights(self) -> int:
        """Elements of all matrices that every token meets: projections of attention and MLP, over all layers."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def num_head_weights(self) -> int:
        """Elements of the output matrix, which only sampled rows meet."""
        return self.hidden_size * self.vocab_size

    @property
    def weight_bytes(self) -> float:
        """Of all matrices; an embedding that is not tied counts, too."""
        num_embeddings = self.num_head_weights * (1 if self.tie_word_embeddings else 2)
        return self.bytes_per_weight * (self.num_layer_weights + num_embeddings)

    @property
    def kv_bytes_per_token(self) -> float:
        """K and V of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.bytes_per_kv_element

    @property
    def attention_flops_per_pair(self) -> int:
        """Of one query token that meets one key: a product for the score and one for the value, over all layers."""
        return 4 * self.num_layers * self.num_heads * self.head_dim


def _shape(name: str, sizes: tuple[int, ...], context: int, *, tied: bool = False) -> ModelShape:
    layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary = sizes
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocabulary,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
    )


KNOWN_SHAPES = {
    shape.name: shape
    for shape in (
        _shape("smollm2-135m", (30, 576, 1536, 9, 3, 64, 49152), 8192, tied=True),
        _shape("llama-3.2-1b", (16, 2048, 8192, 32, 8, 64, 128256), 131072, tied=True),
        _shape("llama-3.2-3b", (28, 3072, 8192, 24, 8, 128, 128256), 131072, tied=True),
        _shape("llama-3.1-8b", (32, 4096, 14336, 32, 8, 128, 128256), 131072),
        _shape("mistral-7b", (32, 4096, 14336, 32, 8, 128, 32768), 32768),
        _shape("qwen2.5-7b", (28, 3584, 18944, 28, 4, 128, 152064), 32768),
        _shape("qwen2.5-32b", (64, 5120, 27648, 40, 8, 128, 152064), 32768),
        _shape("qwen3-8b", (36, 4096, 12288, 32, 8, 128, 151936), 40960),
        _shape("qwen3-32b", (64, 5120, 25600, 64, 8, 128, 151936), 40960),
    )
}
"""Published models in bfloat16, by name; the sizes are those of their ``config.json``."""
