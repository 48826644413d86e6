// A whole stack of decoder layers in one call: what the model files say op by op, without going back to Python between
// ops, and with small neighbouring ops joined. The bits are those of the plain ops.
#pragma once

#include <vector>

#include "ops/attention.h"
#include "ops/linear.h"

namespace octavo {

// One layer: attention between two norms, then the gated MLP. What it points to outlives it.
struct DecoderLayer {
  const Weight *qkv, *o, *gate_up, *down;
  const float *input_norm, *post_attention_norm;  // [hidden size]
  const float* qkv_bias;                          // or null
  const float *q_norm, *k_norm;                   // [head_dim], or null
  int64_t sliding_window;                         // 0: none
};

struct Decoder {
  const Weight* embedding;
  std::vector<DecoderLayer> layers;
  const float* final_norm;
  Rows<const float> cos_sin;
  int64_t num_heads, num_kv_heads, head_dim;
  float epsilon, attention_scale;
};

// input_ids, positions and slots [num_tokens] → hidden states after the final norm, out [num_tokens, hidden size].
// Layer i uses layer i of the cache. Throws Refusal where the plain ops would.
void decode(Runtime& runtime, const Decoder& decoder, const int32_t* input_ids, const int32_t* slots,
            const AttentionBatch& batch, KVCache& cache, Rows<float> out);

}  // namespace octavo
