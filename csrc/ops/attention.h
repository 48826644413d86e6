// Paged attention over a batch: cut into items of work, shared out by tokens of context.
#pragma once

#include "ops/kv_cache.h"

namespace octavo {

// The batch as octavo/backends/base.py defines it.
struct AttentionBatch {
  const int32_t* positions;        // [num_tokens]
  const int32_t* query_start_loc;  // [num_requests + 1]
  const int32_t* seq_lens;         // [num_requests]
  Rows<const int32_t> block_tables;
  int64_t num_tokens, num_requests;
};

// q [num_tokens, num_heads, head_dim] → out [num_tokens, num_heads * head_dim]. `sliding_window` 0: none.
// Throws Refusal if the batch contradicts itself or the cache.
void paged_attention(Runtime& runtime, Heads<const float> q, const KVCache& cache, int layer, const AttentionBatch& batch,
                     float scale, int64_t sliding_window, Rows<float> out);

}  // namespace octavo
