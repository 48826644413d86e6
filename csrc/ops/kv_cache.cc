#include "ops/kv_cache.h"

#include <cstring>
#include <string>

#include "runtime/refusal.h"
#include "simd/half.h"

namespace octavo {
namespace {

KVLayout checked_layout(int block_size, int num_kv_heads, int head_dim) {
  if (block_size < 1 || block_size > 256 || (block_size & (block_size - 1))) {
    throw Refusal("block_size must be a power of two up to 256, not " + std::to_string(block_size));
  }
  if (head_dim < 1 || head_dim > 256) {
    throw Refusal("the native backend supports head sizes up to 256, not " + std::to_string(head_dim));
  }
  if (num_kv_heads < 1) throw Refusal("num_kv_heads must be at least 1");
  return {block_size, num_kv_heads, head_dim};
}

uint16_t stored(const uint16_t*, float x) { return float_to_bf16(x); }
float stored(const float*, float x) { return x; }

template <class T>
void write_head(const KVLayout& layout, T* block, int head, int offset, const float* k, const float* v) {
  T* k_block = block + head * layout.head_elements();
  T* v_block = k_block + layout.v_offset();
  for (int d = 0; d < layout.padded(); ++d) {
    const bool real = d < layout.head_dim;
    k_block[layout.k_index(offset, d)] = stored(block, real ? k[d] : 0.0f);
    v_block[layout.v_index(offset, d)] = stored(block, real ? v[d] : 0.0f);
  }
}

}  // namespace

KVCache::KVCache(int num_layers, int64_t num_blocks, int block_size, int num_kv_heads, int head_dim, bool is_bf16)
    : num_layers_(num_layers), num_blocks_(num_blocks), layout_(checked_layout(block_size, num_kv_heads, head_dim)),
      is_bf16_(is_bf16), block_bytes_(layout_.block_elements() * (is_bf16 ? 2 : 4)),
      pages_(static_cast<size_t>(num_layers * num_blocks * block_bytes_)) {}

void KVCache::write(Runtime& runtime, int layer, Heads<const float> k, Heads<const float> v, const int32_t* slots) {
  for (int64_t row = 0; row < k.num_rows; ++row) {
    if (slots[row] < 0 || slots[row] >= num_blocks_ * layout_.block_size) {
      throw Refusal("slot " + std::to_string(slots[row]) + " is not one of the " +
                                  std::to_string(num_blocks_ * layout_.block_size) + " of the KV cache");
    }
  }
  uint8_t* base = pages_.data() + layer * num_blocks_ * block_bytes_;
  for_each_row(runtime, k.num_rows, k.num_heads * k.head_dim * 2, [&](int64_t row) {
    uint8_t* block = base + slots[row] / layout_.block_size * block_bytes_;
    const int offset = slots[row] % layout_.block_size;
    for (int h = 0; h < layout_.num_kv_heads; ++h) {
      if (is_bf16_) {
        write_head(layout_, reinterpret_cast<uint16_t*>(block), h, offset, k.head(row, h), v.head(row, h));
      } else {
        write_head(layout_, reinterpret_cast<float*>(block), h, offset, k.head(row, h), v.head(row, h));
      }
    }
  });
}

void KVCache::copy_blocks(const int32_t* source, const int32_t* target, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    for (int32_t block : {source[i], target[i]}) {
      if (block < 0 || block >= num_blocks_) {
        throw Refusal("block " + std::to_string(block) + " is not one of the " +
                                    std::to_string(num_blocks_) + " of the KV cache");
      }
    }
  }
  for (int layer = 0; layer < num_layers_; ++layer) {
    uint8_t* base = pages_.data() + layer * num_blocks_ * block_bytes_;
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(base + target[i] * block_bytes_, base + source[i] * block_bytes_, static_cast<size_t>(block_bytes_));
    }
  }
}

}  // namespace octavo
