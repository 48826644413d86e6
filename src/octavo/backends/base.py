"""The ops contract: all that a model and the executor may ask of a backend.

A backend brings its own array type (numpy for ``reference`` and ``native``, ``torch.Tensor`` for ``torch``); models
pass arrays through without looking inside, except for slicing columns of two-dimensional activations.
Activations between ops are float32. ``T`` tokens are in the batch, ``R`` requests, ``S`` rows to sample.

Every op lands in ``reference`` first; one parametrised test compares op × backend × shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from octavo.backends.host_tensor import HostTensor, TensorType

__all__ = ["Array", "Backend", "Batch", "HostTensor", "KVCache", "KVCacheSpec", "SampleOutput", "SamplingBatch"]
__all__ += ["DecoderLayerWeights", "DecoderStack", "FusedDecoder", "TensorType", "Weight"]

Array = Any
"""A backend's own array."""
Weight = Any
"""A prepared matrix; opaque: quantisation changes ``prepare_weight`` and ``linear``, never a model."""
KVCache = Any
"""The pool's memory; opaque: a backend chooses the layout inside a block."""

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Shape of the paged KV cache.

    Attributes:
        dtype: ``bfloat16``, ``float32``, or ``int8``: codes of -127 … 127 with a float32 scale for each token's K and V
            of each head. A number is ``code * scale``, and ``scale = largest magnitude / 127``.
    """

    num_layers: int
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: str

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers, scales among them."""
        itemsize = {"bfloat16": 2, "float32": 4, "int8": 1}[self.dtype]
        scale_bytes = 4 if self.dtype == "int8" else 0
        return 2 * self.num_layers * self.num_kv_heads * (self.head_dim * itemsize + scale_bytes)

    @property
    def num_bytes(self) -> int:
        """Of the whole pool."""
        return self.bytes_per_token * self.block_size * self.num_blocks


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass: the new tokens of R requests laid end to end; a decode is a request with one new token.

    Token ``t`` of request ``r`` (``query_start_loc[r] <= t < query_start_loc[r + 1]``) attends to the cache positions
    ``0 … positions[t]`` of its request; its own K and V are written to the cache before attention reads it.

    Attributes:
        input_ids: int32 [T], in the backend's array type.
        positions: int32 [T].
        slot_mapping: int32 [T]: where the token's K and V go: ``block * block_size + offset``.
        block_tables: int32 [R, max blocks], padded with 0: block ``i`` holds positions ``i * block_size …``.
        seq_lens: int32 [R]: tokens in the cache after this step.
        query_start_loc: int32 [R + 1].
        num_tokens: T.
        num_requests: R.
        max_query_len: longest run of new tokens.
        max_seq_len: largest of ``seq_lens``.
    """

    input_ids: Array
    positions: Array
    slot_mapping: Array
    block_tables: Array
    seq_lens: Array
    query_start_loc: Array
    num_tokens: int
    num_requests: int
    max_query_len: int
    max_seq_len: int


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How to choose a token for each of S rows of logits. Host (numpy) arrays; ``None``: no row uses the feature.

    Sparse per-row lists are in CSR form: row ``s`` owns entries ``starts[s] … starts[s + 1]``.

    Attributes:
        temperature: float32 [S]; 0 is greedy.
        top_k: int32 [S]; 0 keeps all.
        top_p: float32 [S]; 1 keeps all.
        min_p: float32 [S]; 0 keeps all.
        uniform: float32 [S] in [0, 1): the draw of each row, a function of its request's (seed, position).
        repetition_penalty, presence_penalty, frequency_penalty: float32 [S]; 1, 0, 0 change nothing.
        history_starts: int32 [S + 1]; entries of ``history_token_ids``: distinct tokens of the request so far.
        history_token_ids: int32 [E].
        history_counts: int32 [E]: times generated; 0 for a token that only the prompt holds.
        bias_starts: int32 [S + 1].
        bias_token_ids: int32 [E].
        bias_values: float32 [E]; -inf bans a token.
        num_logprobs: most candidates to report per row; -1: no logprobs at all, 0: only the chosen token's.
    """

    temperature: Float32
    top_k: Int32 | None
    top_p: Float32 | None
    min_p: Float32 | None
    uniform: Float32
    repetition_penalty: Float32 | None
    presence_penalty: Float32 | None
    frequency_penalty: Float32 | None
    history_starts: Int32 | None
    history_token_ids: Int32 | None
    history_counts: Int32 | None
    bias_starts: Int32 | None
    bias_token_ids: Int32 | None
    bias_values: Float32 | None
    num_logprobs: int = -1


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """Host arrays.

    Attributes:
        token_ids: int32 [S].
        logprob_token_ids: int32 [S, 1 + num_logprobs]: the chosen token, then the most likely ones in order
            (equal ones by ascending id).
        logprobs: float32, same shape: log-softmax of the raw logits.
        ranks: int32 [S]: rank of the chosen token, 1 = most likely.
    """

    token_ids: Int32
    logprob_token_ids: Int32 | None = None
    logprobs: Float32 | None = None
    ranks: Int32 | None = None


@dataclass(frozen=True, slots=True)
class DecoderLayerWeights:
    """One layer of a :class:`DecoderStack`: attention and a gated MLP, each behind a norm, on a residual stream.

    Attributes:
        qkv_bias: ``None``: there is none.
        q_norm, k_norm: RMS norms of each head before it rotates; ``None``: there are none.
        sliding_window: as in :meth:`Backend.paged_attention`.
    """

    qkv_proj: Weight
    o_proj: Weight
    gate_up_proj: Weight
    down_proj: Weight
    input_layernorm: Array
    post_attention_layernorm: Array
    qkv_bias: Array | None
    q_norm: Array | None
    k_norm: Array | None
    sliding_window: int | None


@dataclass(frozen=True, slots=True)
class DecoderStack:
    """All layers of a model of the Llama family, with the embedding before them and the norm after them."""

    embed_tokens: Weight
    layers: Sequence[DecoderLayerWeights]
    norm: Array
    cos_sin: Array
    num_heads: int
    num_kv_heads: int
    head_dim: int
    epsilon: float


FusedDecoder = Callable[[Batch, KVCache], Array]
"""A batch through a :class:`DecoderStack` → hidden states after the last norm, float32 [T, H]."""


class Backend(Protocol):
    """A backend. Ops return new arrays unless they say "in place"."""

    name: str
    device: str
    default_kv_cache_dtype: str

    # ---- memory -----------------------------------------------------------------------------------------------

    def from_host(self, array: npt.NDArray[Any]) -> Array:
        """Bring a host array over, dtype kept."""

    def to_host(self, array: Array) -> npt.NDArray[Any]:
        """Bring an array back."""

    def prepare_weight(self, tensors: Sequence[HostTensor]) -> Weight:
        """Pack matrices [N_i, K], stacked along N, for :meth:`linear` and :meth:`embedding`. Types may differ."""

    def free_memory_bytes(self) -> int:
        """Memory of the device that is free for a KV cache now."""

    def allocate_kv_cache(self, spec: KVCacheSpec) -> KVCache:
        """Take the pool's memory. Pages that were never written need not be resident."""

    def copy_blocks(self, kv_cache: KVCache, source: Int32, target: Int32) -> None:
        """Copy whole blocks over all layers, ``source[i]`` to ``target[i]``; no block is both (host int32 arrays)."""

    def synchronize(self) -> None:
        """Wait for all work that was started."""

    def fuse_decoder(self, stack: DecoderStack) -> FusedDecoder | None:
        """The whole stack as one op, equal to its ops one by one; ``None``: this backend has no such op."""

    # ---- ops --------------------------------------------------------------------------------------------------

    def embedding(self, weight: Weight, input_ids: Array) -> Array:
        """Rows of a weight [V, H] → float32 [T, H], dequantised exactly."""

    def linear(self, x: Array, weight: Weight, bias: Array | None = None) -> Array:
        """``x @ weight.T + bias``: [T, K] × [N, K] → [T, N]. ``x`` may be a column slice of a wider array."""

    def rms_norm(self, x: Array, weight: Array, epsilon: float) -> Array:
        """``x / sqrt(mean(x²) + epsilon) * weight`` over the last axis of [T, H] (or of [T, heads, head_dim])."""

    def add_rms_norm(self, x: Array, residual: Array, weight: Array, epsilon: float) -> Array:
        """``residual += x`` in place, then its rms_norm."""

    def rotary_embedding(self, q: Array, k: Array, positions: Array, cos_sin: Array) -> None:
        """Rotate in place: q [T, num_heads, head_dim], k [T, num_kv_heads, head_dim].

        ``cos_sin`` is float32 [max positions, rotary_dim]: the cosines, then the sines, of ``rotary_dim / 2`` angles.
        Element ``i`` pairs with ``i + rotary_dim / 2`` (the "half" or GPT-NeoX form); what lies past ``rotary_dim``
        stays.
        """

    def act_and_mul(self, x: Array) -> Array:
        """``silu(x[:, :I]) * x[:, I:]``: [T, 2 I] → [T, I]."""

    def reshape_and_cache(self, k: Array, v: Array, kv_cache: KVCache, layer: int, slot_mapping: Array) -> None:
        """Write k and v [T, num_kv_heads, head_dim] to the cache slots."""

    def paged_attention(
        self, q: Array, kv_cache: KVCache, layer: int, batch: Batch, scale: float, sliding_window: int | None = None
    ) -> Array:
        """Causal attention of q [T, num_heads, head_dim] over the block tables → [T, num_heads * head_dim].

        Query heads ``g * n … g * n + n - 1`` share KV head ``g`` (``n = num_heads // num_kv_heads``). With a window, a
        token sees itself and the ``sliding_window - 1`` positions before it.
        """

    def take_rows(self, x: Array, rows: Array) -> Array:
        """``x[rows]``: [T, H], int32 [S] → [S, H]."""

    def sample(self, logits: Array, sampling: SamplingBatch) -> SampleOutput:
        """Choose a token per row of logits [S, V], as :class:`octavo.SamplingParams` defines it."""

    def logprobs(self, logits: Array, token_ids: Int32, num_logprobs: int) -> SampleOutput:
        """Log probabilities of given tokens (host int32 [S]) and of the ``num_logprobs`` most likely ones."""
