// Paged attention of a few query rows over a range of chunks, by fused multiply-adds.
//
// A query is two numbers, high + low: what the cache's type holds of it, and what that leaves (exactly 0 for a float32
// cache). So keys are the only rounding in a score, and bfloat16 tiles can still compute it.
//
// Per chunk and row: scores (pairs of dimensions as in a matmul, groups of 32: acc = acc + (even + odd), of each group
// first with the high parts, then with the low ones), their maximum, weights
// w = exp(score - maximum), which a bfloat16 cache rounds to bfloat16, the sum of the weights (lane-wise over tiles of 16
// positions, then a tree), and the weighted sum of values (pairs of positions, groups of 16: acc = acc + (even + odd)).
// What a row does not see has weight 0, which changes no bit of a sum.
#include <type_traits>

#include "kernels/attention_state.h"
#include "kernels/matmul_panel.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

#if defined(OCTAVO_ISA_AVX512) || defined(OCTAVO_ISA_AMX)
constexpr int kRowBlock = 4;
#elif defined(OCTAVO_ISA_AVX2)
constexpr int kRowBlock = 2;
#else
constexpr int kRowBlock = 1;
#endif

F32x16 round_like(const uint16_t*, F32x16 x) { return round_to_bf16(x); }
F32x16 round_like(const float*, F32x16 x) { return x; }

template <class T>
struct Workspace {
  alignas(64) float q[kMaxQueryRows][kMaxHeadDim], q_low[kMaxQueryRows][kMaxHeadDim];
  alignas(64) float weights[kMaxQueryRows][kChunk];  // scores first
  alignas(64) float sums[kMaxQueryRows][kMaxHeadDim];
  alignas(64) T tile[kTile * kMaxHeadDim];  // a K or V tile that does not lie in the cache as it is needed
  RowState state[kMaxQueryRows];
};

// The positions that a row sees, as a range.
struct Visible {
  int64_t low, high;
};

Visible visible(const AttentionItem& item, int query) {
  const int64_t position = item.first_position + query;
  const int64_t low = item.sliding_window && position >= item.sliding_window ? position - item.sliding_window + 1 : 0;
  return {low, position + 1};
}

int clamp_lane(int64_t lane) { return lane < 0 ? 0 : lane > kTile ? kTile : static_cast<int>(lane); }

template <class T>
class Walk {
  static constexpr bool kSplitsQueries = std::is_same_v<T, uint16_t>;  // a float32 cache holds all of a query

 public:
  Walk(const KVLayer& kv, const AttentionItem& item, Workspace<T>& work)
      : kv_(kv), layout_(kv.layout), item_(item), w_(work), padded_(kv.layout.padded()),
        low_(visible(item, 0).low), high_(visible(item, item.num_queries - 1).high) {}

  void load_queries() {
    const int head_dim = layout_.head_dim;
    for (int row = 0; row < item_.num_rows(); ++row) {
      const float* q = item_.q + row / item_.num_heads * item_.q_stride + row % item_.num_heads * item_.q_head_stride;
      for (int d = 0; d < padded_; d += 16) {
        const F32x16 x = head_dim - d >= 16 ? load(q + d) : load_partial(q + d, head_dim - d);
        const F32x16 high = round_like(w_.tile, x);
        store(w_.q[row] + d, high);
        store(w_.q_low[row] + d, round_like(w_.tile, sub(x, high)));
      }
    }
  }

  // Leaves the chunk's (m, l, sums) of every row in m, l and the workspace.
  void chunk(int64_t index, float* m, float* l) {
    const int64_t first = index * kChunk;
    first_tile_ = std::max(first, low_) / kTile;
    end_tile_ = (std::min(first + kChunk, high_) + kTile - 1) / kTile;
    for (int64_t tile = first_tile_; tile < end_tile_; ++tile) {
      const T* k = k_tile(tile);
      by_rows([&]<int R>(int row) { scores<R>(k, tile, row); });
    }
    for (int row = 0; row < item_.num_rows(); ++row) softmax(row, m[row], l[row]);
    for (int row = 0; row < item_.num_rows(); ++row) {
      for (int d = 0; d < padded_; d += 16) store(w_.sums[row] + d, zero_f32());
    }
    for (int64_t tile = first_tile_; tile < end_tile_; ++tile) {
      int64_t stride;
      const T* v = v_tile(tile, stride);
      by_rows([&]<int R>(int row) { weigh_values<R>(v, stride, tile, row); });
    }
  }

 private:
  template <class F>
  void by_rows(F&& f) {
    int row = 0;
    for (; row + kRowBlock <= item_.num_rows(); row += kRowBlock) f.template operator()<kRowBlock>(row);
    const int left = item_.num_rows() - row;
    if constexpr (kRowBlock > 1) {
      if (left == 1) f.template operator()<1>(row);
    }
    if constexpr (kRowBlock > 2) {
      if (left == 2) f.template operator()<2>(row);
      if (left == 3) f.template operator()<3>(row);
    }
  }

  const T* head_in_block(int64_t position) const {
    const int64_t block = item_.block_table[position / layout_.block_size];
    return reinterpret_cast<const T*>(kv_.blocks + block * kv_.block_bytes) + item_.kv_head * layout_.head_elements();
  }

  // [D / 2][16 positions][2]. Positions that nobody sees may be anything: their lanes are masked.
  const T* k_tile(int64_t tile) {
    const int64_t position = tile * kTile;
    if (layout_.is_tiled()) return head_in_block(position) + layout_.k_index(position % layout_.block_size, 0);
    for (int i = 0; i < kTile; ++i) {
      if (position + i >= high_ || position + i < low_) continue;
      const T* row = head_in_block(position + i) + layout_.k_index((position + i) % layout_.block_size, 0);
      for (int d = 0; d < padded_; ++d) w_.tile[(d / 2 * kTile + i) * 2 + d % 2] = row[d];
    }
    return w_.tile;
  }

  // [D / 16][8 pairs of positions][16 dimensions][2], where `stride` elements lie between runs of 16 dimensions. Values at
  // positions that nobody sees are zero: their weight is, and zero times what an old owner left might be NaN.
  const T* v_tile(int64_t tile, int64_t& stride) {
    const int64_t position = tile * kTile;
    const bool whole = position >= low_ && position + kTile <= high_;
    if (layout_.is_tiled() && whole) {
      stride = layout_.block_size * 16;
      return head_in_block(position) + layout_.v_offset() + layout_.v_index(position % layout_.block_size, 0);
    }
    stride = kTile * 16;
    for (int i = 0; i < kTile; ++i) {
      const bool seen = position + i >= low_ && position + i < high_;
      const T* head = seen ? head_in_block(position + i) + layout_.v_offset() : nullptr;
      const int in_block = static_cast<int>((position + i) % layout_.block_size);
      for (int d = 0; d < padded_; ++d) {
        w_.tile[((d / 16 * 8 + i / 2) * 16 + d % 16) * 2 + i % 2] = seen ? head[layout_.v_index(in_block, d)] : T{0};
      }
    }
    return w_.tile;
  }

  template <int R>
  void scores(const T* k, int64_t tile, int row) {
    F32x16 acc[R];
    for (int r = 0; r < R; ++r) acc[r] = zero_f32();
    for (int group = 0; group < padded_; group += 32) {
      F32x16 even[R], odd[R], even_low[R], odd_low[R];
      for (int r = 0; r < R; ++r) even[r] = odd[r] = even_low[r] = odd_low[r] = zero_f32();
      const int end = std::min(group + 32, padded_);
      for (int d = group; d < end; d += 2) {
        F32x16 k_even, k_odd;
        load_pairs(k + d * kTile, k_even, k_odd);
        for (int r = 0; r < R; ++r) {
          even[r] = fma(broadcast(w_.q[row + r][d]), k_even, even[r]);
          odd[r] = fma(broadcast(w_.q[row + r][d + 1]), k_odd, odd[r]);
          if constexpr (kSplitsQueries) {
            even_low[r] = fma(broadcast(w_.q_low[row + r][d]), k_even, even_low[r]);
            odd_low[r] = fma(broadcast(w_.q_low[row + r][d + 1]), k_odd, odd_low[r]);
          }
        }
      }
      for (int r = 0; r < R; ++r) {
        acc[r] = add(acc[r], add(even[r], odd[r]));
        if constexpr (kSplitsQueries) acc[r] = add(acc[r], add(even_low[r], odd_low[r]));
      }
    }
    const F32x16 scale = broadcast(item_.scale), hidden = from_bits(broadcast_u32(0xff800000u));
    for (int r = 0; r < R; ++r) {
      const Visible seen = visible(item_, (row + r) / item_.num_heads);
      const int low = clamp_lane(seen.low - tile * kTile), high = clamp_lane(seen.high - tile * kTile);
      store(w_.weights[row + r] + tile * kTile % kChunk, select_range(mul(acc[r], scale), low, high, hidden));
    }
  }

  void softmax(int row, float& m, float& l) {
    float* weights = w_.weights[row];
    const int64_t begin = first_tile_ * kTile % kChunk, end = begin + (end_tile_ - first_tile_) * kTile;
    F32x16 largest = load(weights + begin);
    for (int64_t i = begin + kTile; i < end; i += kTile) largest = max(largest, load(weights + i));
    m = reduce_max(largest);
    F32x16 sum = zero_f32();
    const F32x16 offset = broadcast(m == -INFINITY ? 0.0f : m);  // a row that sees nothing here: all weights 0
    for (int64_t i = begin; i < end; i += kTile) {
      const F32x16 weight = round_like(w_.tile, exp(sub(load(weights + i), offset)));
      sum = add(sum, weight);
      store(weights + i, weight);
    }
    l = reduce_add(sum);
  }

  template <int R>
  void weigh_values(const T* v, int64_t stride, int64_t tile, int row) {
    const int64_t column = tile * kTile % kChunk;
    for (int d = 0; d < padded_; d += 16, v += stride) {
      F32x16 even[R], odd[R];
      for (int r = 0; r < R; ++r) even[r] = odd[r] = zero_f32();
      for (int i = 0; i < kTile; i += 2) {
        F32x16 v_even, v_odd;
        load_pairs(v + i * 16, v_even, v_odd);
        for (int r = 0; r < R; ++r) {
          even[r] = fma(broadcast(w_.weights[row + r][column + i]), v_even, even[r]);
          odd[r] = fma(broadcast(w_.weights[row + r][column + i + 1]), v_odd, odd[r]);
        }
      }
      for (int r = 0; r < R; ++r) {
        float* sums = w_.sums[row + r] + d;
        store(sums, add(load(sums), add(even[r], odd[r])));
      }
    }
  }

  const KVLayer& kv_;
  const KVLayout layout_;
  const AttentionItem& item_;
  Workspace<T>& w_;
  const int padded_;
  const int64_t low_, high_;  // what any row of the item sees
  int64_t first_tile_ = 0, end_tile_ = 0;
};

template <class T>
void attend(const KVLayer& kv, const AttentionItem& item) {
  alignas(64) Workspace<T> work;
  Walk<T> walk(kv, item, work);
  walk.load_queries();
  const int rows = item.num_rows(), padded = kv.layout.padded();
  for (int row = 0; row < rows; ++row) work.state[row].l = 0;
  float m[kMaxQueryRows], l[kMaxQueryRows];
  for (int64_t chunk = item.first_chunk; chunk < item.end_chunk; ++chunk) {
    walk.chunk(chunk, m, l);
    float* partial = item.partials + (chunk - item.first_chunk) * rows * (padded + 2);
    for (int row = 0; row < rows; ++row) {
      if (!item.partials) {
        fold_chunk(work.state[row], m[row], l[row], work.sums[row], padded);
        continue;
      }
      float* target = partial + row * (padded + 2);
      for (int d = 0; d < padded; d += 16) store(target + d, load(work.sums[row] + d));
      target[padded] = m[row];
      target[padded + 1] = l[row];
    }
  }
  if (item.partials) return;
  for (int row = 0; row < rows; ++row) {
    float* out = item.out + row / item.num_heads * item.out_stride + row % item.num_heads * kv.layout.head_dim;
    write_result(work.state[row], out, kv.layout.head_dim);
  }
}

}  // namespace

void attention(const KVLayer& kv, const AttentionItem& item) {
  if (kv.is_bf16) {
    attend<uint16_t>(kv, item);
  } else {
    attend<float>(kv, item);
  }
}

void merge_partials(const KVLayer& kv, const AttentionItem& item) {
  const int rows = item.num_rows(), padded = kv.layout.padded();
  for (int row = 0; row < rows; ++row) {
    RowState state;
    state.l = 0;
    for (int64_t chunk = 0; chunk < item.end_chunk - item.first_chunk; ++chunk) {
      const float* partial = item.partials + (chunk * rows + row) * (padded + 2);
      fold_chunk(state, partial[padded], partial[padded + 1], partial, padded);
    }
    float* out = item.out + row / item.num_heads * item.out_stride + row % item.num_heads * kv.layout.head_dim;
    write_result(state, out, kv.layout.head_dim);
  }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
