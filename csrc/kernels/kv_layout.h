// Where K and V of a token lie in a block of the KV cache.
//
// A block holds, for each KV head, its positions' K and then, in the block's second half, their V. Head sizes are padded
// to a multiple of 16 (D). With 16 or more positions per block, so that vectors and tiles load straight from it:
//
//   bfloat16, float32
//   K  [kv head][position / 16][D / 2][16 positions][2]      a pair of dimensions side by side, positions in lanes
//   V  [kv head][D / 16][position / 2][16 dimensions][2]     a pair of positions side by side, dimensions in lanes
//
//   int8                                                     sixteen codes are widened to sixteen lanes at once
//   K  [kv head][position / 16][D][16 positions]
//   V  [kv head][D / 16][position][16 dimensions]
//
// With fewer, plain rows that attention first gathers:   K, V  [kv head][position][D].
//
// An int8 block ends with a float32 scale per token and head: those of K [kv head][position], then those of V. A number
// is code * scale. What no token has written is never read.
#pragma once

#include <cstdint>

namespace octavo {

constexpr int kTile = 16;  // positions per tile

constexpr int padded_head_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }

enum class KVType { kBf16, kF32, kInt8 };

struct KVLayout {
  KVType type;
  int block_size, num_kv_heads, head_dim;

  int padded() const { return padded_head_dim(head_dim); }
  bool is_tiled() const { return block_size >= kTile; }
  bool is_paired() const { return type != KVType::kInt8; }
  bool has_scales() const { return type == KVType::kInt8; }
  int64_t element_bytes() const { return type == KVType::kBf16 ? 2 : type == KVType::kF32 ? 4 : 1; }
  int64_t head_elements() const { return static_cast<int64_t>(block_size) * padded(); }
  int64_t v_offset() const { return num_kv_heads * head_elements(); }  // of a block's V, in elements
  int64_t num_scales() const { return has_scales() ? static_cast<int64_t>(num_kv_heads) * block_size : 0; }  // of K, or V
  int64_t scales_offset() const { return 2 * v_offset() * element_bytes(); }  // in bytes
  int64_t block_bytes() const { return scales_offset() + 2 * num_scales() * static_cast<int64_t>(sizeof(float)); }

  // Element d of position p, from the start of a head's K (or V) in a block.
  int64_t k_index(int p, int d) const {
    if (!is_tiled()) return static_cast<int64_t>(p) * padded() + d;
    const int64_t tile = static_cast<int64_t>(p / kTile) * padded() * kTile;
    return is_paired() ? tile + (d / 2 * kTile + p % kTile) * 2 + d % 2 : tile + d * kTile + p % kTile;
  }
  int64_t v_index(int p, int d) const {
    if (!is_tiled()) return static_cast<int64_t>(p) * padded() + d;
    const int64_t columns = static_cast<int64_t>(d / 16) * block_size * 16;
    return is_paired() ? columns + (p / 2 * 16 + d % 16) * 2 + p % 2 : columns + p * 16 + d % 16;
  }
};

}  // namespace octavo
