#include "ops/attention.h"

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/refusal.h"

namespace octavo {
namespace {

void check(const AttentionBatch& batch, const KVCache& cache) {
  const int64_t block_size = cache.layout().block_size;
  for (int64_t r = 0; r < batch.num_requests; ++r) {
    const std::string request = "request " + std::to_string(r) + " of the batch: ";
    const int64_t begin = batch.query_start_loc[r], end = batch.query_start_loc[r + 1], length = batch.seq_lens[r];
    if (begin < 0 || end < begin || end > batch.num_tokens) throw Refusal(request + "bad query_start_loc");
    if (end == begin) continue;
    if (batch.positions[end - 1] + 1 != length || batch.positions[begin] < 0 ||
        batch.positions[end - 1] - batch.positions[begin] != end - 1 - begin) {
      throw Refusal(request + "positions must be the last ones of seq_lens");
    }
    const int64_t blocks = (length + block_size - 1) / block_size;
    if (blocks > batch.block_tables.num_columns) throw Refusal(request + "block table too short");
    for (int64_t i = 0; i < blocks; ++i) {
      const int32_t block = batch.block_tables.row(r)[i];
      if (block < 0 || block >= cache.num_blocks()) {
        throw Refusal(request + "block " + std::to_string(block) + " is not in the KV cache");
      }
    }
  }
}

// Whether a chunk of all KV heads is a small enough share of the work.
bool has_many_chunks(const AttentionBatch& batch, int num_threads) {
  int64_t num_chunks = 0;
  for (int64_t r = 0; r < batch.num_requests; ++r) num_chunks += (batch.seq_lens[r] + kChunk - 1) / kChunk;
  return num_chunks >= 8 * num_threads;
}

// One item per run of queries × group of heads of a KV head, over all that its rows see; of several KV heads if they are
// joined and few enough rows.
std::vector<AttentionItem> whole_items(Heads<const float> q, const KVLayout& layout, const AttentionBatch& batch,
                                       float scale, int64_t sliding_window, bool join_kv_heads, Rows<float> out) {
  std::vector<AttentionItem> items;
  const int heads_per_kv = static_cast<int>(q.num_heads) / layout.num_kv_heads;
  const int heads_step = std::min(heads_per_kv, kMaxQueryRows);
  for (int64_t r = 0; r < batch.num_requests; ++r) {
    const int64_t end = batch.query_start_loc[r + 1];
    const int queries_step = kMaxQueryRows / heads_step;
    for (int64_t token = batch.query_start_loc[r]; token < end; token += queries_step) {
      const int num_queries = static_cast<int>(std::min<int64_t>(queries_step, end - token));
      const int kv_step = join_kv_heads && heads_step == heads_per_kv ? kMaxQueryRows / (num_queries * heads_step) : 1;
      for (int head = 0; head < heads_per_kv; head += heads_step) {
        for (int kv_head = 0; kv_head < layout.num_kv_heads; kv_head += kv_step) {
          AttentionItem item{};
          item.block_table = batch.block_tables.row(r);
          item.first_position = batch.positions[token];
          item.num_queries = num_queries;
          item.num_heads = std::min(heads_step, heads_per_kv - head);
          item.first_kv_head = kv_head;
          item.num_kv_heads = std::min(kv_step, layout.num_kv_heads - kv_head);
          item.sliding_window = sliding_window;
          item.scale = scale;
          const int64_t first_head = static_cast<int64_t>(kv_head) * heads_per_kv + head;
          item.q = q.head(token, first_head);
          item.q_stride = q.stride;
          item.q_head_stride = q.head_stride;
          const int64_t low = sliding_window ? std::max<int64_t>(0, item.first_position - sliding_window + 1) : 0;
          item.first_chunk = low / kChunk;
          item.end_chunk = (item.first_position + item.num_queries + kChunk - 1) / kChunk;
          item.out = out.row(token) + first_head * layout.head_dim;
          item.out_stride = out.stride;
          items.push_back(item);
        }
      }
    }
  }
  return items;
}

}  // namespace

void paged_attention(Runtime& runtime, Heads<const float> q, const KVCache& cache, int layer, const AttentionBatch& batch,
                     float scale, int64_t sliding_window, Rows<float> out) {
  check(batch, cache);
  const KVLayer kv = cache.layer(layer);
  const bool join_kv_heads = has_many_chunks(batch, runtime.pool.num_threads());
  std::vector<AttentionItem> whole = whole_items(q, cache.layout(), batch, scale, sliding_window, join_kv_heads, out);
  int64_t num_chunks = 0;
  for (const AttentionItem& item : whole) num_chunks += item.end_chunk - item.first_chunk;

  // An item that is long beside a thread's share is cut into runs of chunks; their partial results are merged below.
  const int64_t share = std::max<int64_t>(1, num_chunks / (runtime.pool.num_threads() * 4));
  const bool may_cut = runtime.pool.num_threads() > 1;
  std::vector<AttentionItem> pieces, cut;
  size_t partial_elements = 0;
  const int64_t row_elements = cache.layout().padded() + 2;
  for (AttentionItem& item : whole) {
    const int64_t chunks = item.end_chunk - item.first_chunk;
    if (may_cut && chunks > share) partial_elements += static_cast<size_t>(chunks * item.num_rows() * row_elements);
  }
  float* partials = partial_elements ? runtime.partials.require(partial_elements) : nullptr;
  for (AttentionItem& item : whole) {
    const int64_t chunks = item.end_chunk - item.first_chunk;
    if (!may_cut || chunks <= share) {
      pieces.push_back(item);
      continue;
    }
    item.partials = partials;
    partials += chunks * item.num_rows() * row_elements;
    cut.push_back(item);
    for (int64_t first = item.first_chunk; first < item.end_chunk; first += share) {
      AttentionItem piece = item;
      piece.first_chunk = first;
      piece.end_chunk = std::min(first + share, item.end_chunk);
      piece.partials = item.partials + (first - item.first_chunk) * item.num_rows() * row_elements;
      pieces.push_back(piece);
    }
  }
  // The longest last queries come last in the list: take them first, so that no thread is left with a long one.
  const int64_t count = static_cast<int64_t>(pieces.size());
  runtime.pool.for_each(count, [&](int64_t i) { runtime.kernels.attention(kv, pieces[static_cast<size_t>(count - 1 - i)]); });
  runtime.pool.for_each(static_cast<int64_t>(cut.size()),
                        [&](int64_t i) { runtime.kernels.merge_partials(kv, cut[static_cast<size_t>(i)]); });
}

}  // namespace octavo
