// Paged attention of a few query rows over a range of chunks, by fused multiply-adds of floats: what the cache rounded
// when it was written is the only rounding besides float's own.
//
// Per chunk and row: scores (even and odd dimensions in a chain of fused multiply-adds each, then their sum; times the
// key's scale, if it has one, and times `scale`), their maximum, weights w = exp(score - maximum), the sum of the weights
// (lane-wise over tiles of 16 positions, then a tree), and the weighted sum of values (per tile even and odd positions in
// a chain each: sums = sums + (even + odd)). A value's codes are weighed by w * scale. What a row does not see has weight
// 0, which changes no bit of a sum.
#include <algorithm>
#include <cstring>

#include "kernels/attention_state.h"
#include "simd/unroll.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

// Rows that share a load: as many as have even and odd sums in registers.
#if defined(OCTAVO_ISA_AVX512) || defined(OCTAVO_ISA_AMX)
constexpr int kRowBlock = 8;
#elif defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_NEON)
constexpr int kRowBlock = 3;
#else
constexpr int kRowBlock = 2;
#endif

// The sums of products of num_pairs pairs, even and odd ones in a chain each:
//   sums[r] = sum of a[r][2i] * b_even[i] + sum of a[r][2i + 1] * b_odd[i]
// Rows of `a` lie kStride apart; as many elements at `next` come nearer meanwhile.
template <int R, int kStride, class T>
OCTAVO_INLINE void multiply_pairs(const float* a, const T* b, int num_pairs, const T* next, F32x16 (&sums)[R]) {
  F32x16 even[R], odd[R];
  unroll<R>([&](auto r) { even[r] = odd[r] = zero_f32(); });
  for (int i = 0; i < num_pairs; ++i) {
    __builtin_prefetch(next + 32 * i);
    const F32x16 b_even = load_even(b + 32 * i);
    unroll<R>([&](auto r) { even[r] = fma(broadcast(a[r * kStride + 2 * i]), b_even, even[r]); });
    __asm__ volatile("" ::: "memory");  // the even half is done with: no register holds both
    const F32x16 b_odd = load_odd(b + 32 * i);
    unroll<R>([&](auto r) { odd[r] = fma(broadcast(a[r * kStride + 2 * i + 1]), b_odd, odd[r]); });
  }
  unroll<R>([&](auto r) { sums[r] = add(even[r], odd[r]); });
}

// Copies 16 pairs, zeros for what is not seen.
template <class T>
void copy_pairs(const T* pairs, bool even_seen, bool odd_seen, T* target) {
  if (even_seen && odd_seen) {
    std::memcpy(target, pairs, 32 * sizeof(T));
    return;
  }
  for (int i = 0; i < 32; i += 2) {
    target[i] = even_seen ? pairs[i] : T{0};
    target[i + 1] = odd_seen ? pairs[i + 1] : T{0};
  }
}

// Calls f(Constant<R>, first of R rows) for runs of the rows `row … end_row - 1`, R at most kRowBlock.
template <class F>
void by_rows(int row, int end_row, const F& f) {
  for (; row + kRowBlock <= end_row; row += kRowBlock) f(Constant<kRowBlock>{}, row);
  unroll<kRowBlock, 1>([&](auto rest) {
    if (rest == end_row - row) f(rest, row);
  });
}

template <class T>
struct Workspace {
  alignas(64) float q[kMaxQueryRows][kMaxHeadDim];
  alignas(64) float weights[kMaxQueryRows][kChunk];  // scores first
  alignas(64) float sums[kMaxQueryRows][kMaxHeadDim];
  alignas(64) T tile[kTile * kMaxHeadDim];  // a K or V tile that does not lie in the cache as it is needed
  alignas(64) float k_scales[kTile], v_scales[kChunk];
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
  static constexpr bool kHasScales = sizeof(T) == 1;

 public:
  Walk(const KVLayer& kv, const AttentionItem& item, Workspace<T>& work)
      : kv_(kv), layout_(kv.layout), item_(item), w_(work), padded_(kv.layout.padded()),
        low_(visible(item, 0).low), high_(visible(item, item.num_queries - 1).high),
        last_low_(visible(item, item.num_queries - 1).low), first_high_(visible(item, 0).high) {}

  void load_queries() {
    for (int row = 0; row < item_.num_rows(); ++row) {
      const float* q = item_.q + item_.query_of(row) * item_.q_stride + item_.head_of(row) * item_.q_head_stride;
      for (int d = 0; d < padded_; d += 16) store(w_.q[row] + d, load_up_to(q + d, layout_.head_dim - d));
    }
  }

  // Leaves the chunk's (m, l, sums) of every row in m, l and the workspace. KV heads take turns within the chunk, as they
  // lie side by side in a block: what the processor reads ahead of one is the next one's.
  void chunk(int64_t index, float* m, float* l) {
    const int64_t first = index * kChunk;
    first_tile_ = std::max(first, low_) / kTile;
    end_tile_ = (std::min(first + kChunk, high_) + kTile - 1) / kTile;
    for (int i = 0; i < item_.num_kv_heads; ++i) one_kv_head(i, m, l);
  }

 private:
  void one_kv_head(int index, float* m, float* l) {
    const int kv_head = item_.first_kv_head + index;
    const int first_row = index * item_.rows_per_kv_head(), end_row = first_row + item_.rows_per_kv_head();
    for (int64_t tile = first_tile_; tile < end_tile_; ++tile) {
      const T* k = k_tile(kv_head, tile);
      const T* next = tile + 1 < end_tile_ ? k_in_cache(kv_head, tile + 1) : v_in_cache(kv_head, first_tile_);
      if (kHasScales) load_scales(kv_head, tile);
      by_rows(first_row, end_row, [&](auto rows, int row) { scores<rows>(k, next, tile, row); });
    }
    for (int row = first_row; row < end_row; ++row) {
      softmax(row, m[row], l[row]);
      for (int d = 0; d < padded_; d += 16) store(w_.sums[row] + d, zero_f32());
    }
    for (int64_t tile = first_tile_; tile < end_tile_; ++tile) {
      int64_t stride;
      const T* v = v_tile(kv_head, tile, stride);
      const T* next = v;
      if (tile + 1 < end_tile_) {
        next = v_in_cache(kv_head, tile + 1);
      } else if (index + 1 < item_.num_kv_heads) {
        next = k_in_cache(kv_head + 1, first_tile_);
      } else if (end_tile_ * kTile < high_) {
        next = k_in_cache(item_.first_kv_head, end_tile_);
      }
      by_rows(first_row, end_row, [&](auto rows, int row) { weigh_values<rows>(v, stride, next, tile, row); });
    }
  }

  const uint8_t* block_of(int64_t position) const {
    return kv_.blocks + item_.block_table[position / layout_.block_size] * kv_.block_bytes;
  }

  const T* head_in_block(int kv_head, int64_t position) const {
    return reinterpret_cast<const T*>(block_of(position)) + kv_head * layout_.head_elements();
  }

  // Scales of the head's keys (0) or values (1), from `position` to the end of its block.
  const float* scales_in_block(int kv_head, int64_t position, int of_values) const {
    const float* scales = reinterpret_cast<const float*>(block_of(position) + layout_.scales_offset());
    return scales + of_values * layout_.num_scales() + kv_head * layout_.block_size + position % layout_.block_size;
  }

  // Where a tile begins, if the cache is tiled; otherwise something to prefetch.
  const T* k_in_cache(int kv_head, int64_t tile) const {
    return head_in_block(kv_head, tile * kTile) + layout_.k_index(static_cast<int>(tile * kTile % layout_.block_size), 0);
  }
  const T* v_in_cache(int kv_head, int64_t tile) const {
    const int in_block = static_cast<int>(tile * kTile % layout_.block_size);
    return head_in_block(kv_head, tile * kTile) + layout_.v_offset() + layout_.v_index(in_block, 0);
  }

  bool is_seen(int64_t position) const { return position >= low_ && position < high_; }

  // As the cache has K tiles. Positions that nobody sees may be anything: their lanes are masked.
  const T* k_tile(int kv_head, int64_t tile) {
    if (layout_.is_tiled()) return k_in_cache(kv_head, tile);
    const KVLayout tiled{layout_.type, kTile, 1, layout_.head_dim};
    for (int i = 0; i < kTile; ++i) {
      const int64_t position = tile * kTile + i;
      if (!is_seen(position)) continue;
      const T* row = head_in_block(kv_head, position) + layout_.k_index(static_cast<int>(position % layout_.block_size), 0);
      for (int d = 0; d < padded_; ++d) w_.tile[tiled.k_index(i, d)] = row[d];
    }
    return w_.tile;
  }

  // As the cache has V tiles, where `stride` elements lie between runs of 16 dimensions. Values at positions that nobody
  // sees are zero: their weight is, and zero times what an old owner left might be NaN. (No code is NaN.)
  const T* v_tile(int kv_head, int64_t tile, int64_t& stride) {
    const int64_t position = tile * kTile;
    if (layout_.is_tiled()) {
      const T* v = v_in_cache(kv_head, tile);
      stride = layout_.block_size * 16;
      if (kHasScales || (is_seen(position) && is_seen(position + kTile - 1))) return v;
      for (int d = 0; d < padded_; d += 16, v += stride) {
        for (int i = 0; i < kTile; i += 2) {
          copy_pairs(v + i * 16, is_seen(position + i), is_seen(position + i + 1), w_.tile + (d + i) * 16);
        }
      }
      stride = kTile * 16;
      return w_.tile;
    }
    stride = kTile * 16;
    const KVLayout tiled{layout_.type, kTile, 1, layout_.head_dim};
    for (int i = 0; i < kTile; ++i) {
      const bool seen = is_seen(position + i);
      const int in_block = static_cast<int>((position + i) % layout_.block_size);
      const T* row = seen ? head_in_block(kv_head, position + i) + layout_.v_offset() + layout_.v_index(in_block, 0) : nullptr;
      for (int d = 0; d < padded_; ++d) w_.tile[tiled.v_index(i, d)] = seen ? row[d] : T{0};
    }
    return w_.tile;
  }

  // Of a tile's keys, and of its values to their place in the chunk: zero where nobody looks, for zero times NaN is NaN.
  void load_scales(int kv_head, int64_t tile) {
    const int64_t position = tile * kTile;
    float* v_scales = w_.v_scales + position % kChunk;
    const int run = std::min(kTile, layout_.block_size);  // positions of the tile that lie in one block
    for (int i = 0; i < kTile; i += run) {
      if (position + i >= high_ || position + i + run <= low_) {
        std::memset(v_scales + i, 0, sizeof(float) * static_cast<size_t>(run));
        continue;
      }
      std::memcpy(w_.k_scales + i, scales_in_block(kv_head, position + i, 0), sizeof(float) * static_cast<size_t>(run));
      std::memcpy(v_scales + i, scales_in_block(kv_head, position + i, 1), sizeof(float) * static_cast<size_t>(run));
    }
    const int low = clamp_lane(low_ - position), high = clamp_lane(high_ - position);
    store(v_scales, select_range(load(v_scales), low, high, zero_f32()));
    if (layout_.is_tiled() && position + kTile < high_) {
      __builtin_prefetch(scales_in_block(kv_head, position + kTile, 0));
      __builtin_prefetch(scales_in_block(kv_head, position + kTile, 1));
    }
  }

  template <int kRows>
  void scores(const T* k, const T* next, int64_t tile, int row) {
    F32x16 sums[kRows];
    multiply_pairs<kRows, kMaxHeadDim>(w_.q[row], k, padded_ / 2, next, sums);
    const F32x16 scale = broadcast(item_.scale), hidden = from_bits(broadcast_u32(0xff800000u));
    const bool all_see_all = tile * kTile >= last_low_ && (tile + 1) * kTile <= first_high_;
    unroll<kRows>([&](auto r) {
      const F32x16 unscaled = kHasScales ? mul(sums[r], load(w_.k_scales)) : sums[r];
      F32x16 score = mul(unscaled, scale);
      if (!all_see_all) {
        const Visible seen = visible(item_, item_.query_of(row + r));
        score = select_range(score, clamp_lane(seen.low - tile * kTile), clamp_lane(seen.high - tile * kTile), hidden);
      }
      store(w_.weights[row + r] + tile * kTile % kChunk, score);
    });
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
      const F32x16 weight = exp(sub(load(weights + i), offset));
      sum = add(sum, weight);
      store(weights + i, kHasScales ? mul(weight, load(w_.v_scales + i)) : weight);
    }
    l = reduce_add(sum);
  }

  template <int kRows>
  void weigh_values(const T* v, int64_t stride, const T* next, int64_t tile, int row) {
    const float* weights = w_.weights[row] + tile * kTile % kChunk;
    for (int d = 0; d < padded_; d += 16, v += stride, next += stride) {
      F32x16 tile_sums[kRows];
      multiply_pairs<kRows, kChunk>(weights, v, kTile / 2, next, tile_sums);
      unroll<kRows>([&](auto r) {
        float* sums = w_.sums[row + r] + d;
        store(sums, add(load(sums), tile_sums[r]));
      });
    }
  }

  const KVLayer& kv_;
  const KVLayout layout_;
  const AttentionItem& item_;
  Workspace<T>& w_;
  const int padded_;
  const int64_t low_, high_;              // what any row of the item sees
  const int64_t last_low_, first_high_;  // what every row sees
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
    float* out = item.out + item.query_of(row) * item.out_stride + item.head_of(row) * kv.layout.head_dim;
    write_result(work.state[row], out, kv.layout.head_dim);
  }
}

}  // namespace

void attention(const KVLayer& kv, const AttentionItem& item) {
  switch (kv.layout.type) {
    case KVType::kBf16: return attend<uint16_t>(kv, item);
    case KVType::kF32: return attend<float>(kv, item);
    case KVType::kInt8: return attend<int8_t>(kv, item);
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
    float* out = item.out + item.query_of(row) * item.out_stride + item.head_of(row) * kv.layout.head_dim;
    write_result(state, out, kv.layout.head_dim);
  }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
