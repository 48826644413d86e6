// Where K and V of a token lie in a block of the KV cache.
//
// A block holds, for each KV head, its positions' K and then, in the block's second half, their V. Head sizes are padded
// to a multiple of 16 (D). With 16 or more positions per block, so that vectors and tiles load straight from it:
//
//   K  [kv head][position / 16][D / 2][16 positions][2]      a pair of dimensions side by side, positions in lanes
//   V  [kv head][D / 16][position / 2][16 dimensions][2]     a pair of positions side by side, dimensions in lanes
//
// With fewer, plain rows that attention first gathers:   K, V  [kv head][position][D].
//
// Elements are bfloat16 or float. What no token has written is never read.
#pragma once

#include <cstdint>

namespace octavo {

constexpr int kTile = 16;  // positions per tile

constexpr int padded_head_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }

struct KVLayout {
  int block_size, num_kv_heads, head_dim;

  int padded() const { return padded_head_dim(head_dim); }
  bool is_tiled() const { return block_size >= kTile; }
  int64_t head_elements() const { return static_cast<int64_t>(block_size) * padded(); }
  int64_t v_offset() const { return num_kv_heads * head_elements(); }  // of a block's V, in elements
  int64_t block_elements() const { return 2 * v_offset(); }

  // Element d of position p, from the start of a head's K (or V) in a block.
  int64_t k_index(int p, int d) const {
    if (!is_tiled()) return static_cast<int64_t>(p) * padded() + d;
    return ((static_cast<int64_t>(p / kTile) * (padded() / 2) + d / 2) * kTile + p % kTile) * 2 + d % 2;
  }
  int64_t v_index(int p, int d) const {
    if (!is_tiled()) return static_cast<int64_t>(p) * padded() + d;
    return ((static_cast<int64_t>(d / 16) * (block_size / 2) + p / 2) * 16 + d % 16) * 2 + p % 2;
  }
};

}  // namespace octavo
