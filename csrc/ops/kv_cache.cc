#include "ops/kv_cache.h"

#include <cmath>
#include <cstring>

#include "runtime/refusal.h"
#include "simd/half.h"

namespace octavo {
namespace {

KVLayout checked_layout(KVType type, int block_size, int num_kv_heads, int head_dim) {
  if (block_size < 1 || block_size > 256 || (block_size & (block_size - 1))) {
    throw Refusal("block_size must be a power of two up to 256, not " + std::to_string(block_size));
  }
  if (head_dim < 1 || head_dim > 256) {
    throw Refusal("the native backend supports head sizes up to 256, not " + std::to_string(head_dim));
  }
  if (num_kv_heads < 1) throw Refusal("num_kv_heads must be at least 1");
  return {type, block_size, num_kv_heads, head_dim};
}

// One head of one token, before and after: what is written, and the scale of its codes.
struct Int8Head {
  float scale, inverse;

  // scale = largest / 127, so that codes are -127 … 127; 0 for numbers that are all (nearly) zero, NaN for any that is not
  // finite.
  Int8Head(const float* x, int head_dim) {
    float largest = 0;
    for (int d = 0; d < head_dim; ++d) {
      const float magnitude = std::fabs(x[d]);
      if (!(magnitude <= largest)) largest = magnitude;
      if (!(magnitude < INFINITY)) {
        largest = NAN;
        break;
      }
    }
    const bool is_zero = largest < 1e-30f, is_finite = largest == largest;
    scale = is_zero ? 0.0f : largest / 127.0f;
    inverse = is_zero || !is_finite ? 0.0f : 127.0f / largest;
  }

  int8_t code(float x) const {
    if (inverse == 0) return 0;
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which its low bits then hold
    const float product = x * inverse;
    return static_cast<int8_t>(float_bits(product + kRound));
  }
};

// One head of one token to its place in a block.
template <class T, class Store>
void write_head(const KVLayout& layout, T* head, bool is_value, int offset, const float* x, const Store& stored) {
  for (int d = 0; d < layout.padded(); ++d) {
    const int64_t index = is_value ? layout.v_index(offset, d) : layout.k_index(offset, d);
    head[index] = d < layout.head_dim ? stored(x[d]) : T{0};
  }
}

void write_token(const KVLayout& layout, uint8_t* block, int head, bool is_value, int offset, const float* x) {
  const int64_t first = (is_value ? layout.v_offset() : 0) + head * layout.head_elements();
  uint8_t* target = block + first * layout.element_bytes();
  switch (layout.type) {
    case KVType::kBf16:
      return write_head(layout, reinterpret_cast<uint16_t*>(target), is_value, offset, x, float_to_bf16);
    case KVType::kF32:
      return write_head(layout, reinterpret_cast<float*>(target), is_value, offset, x, [](float v) { return v; });
    case KVType::kInt8: {
      const Int8Head codes(x, layout.head_dim);
      float* scales = reinterpret_cast<float*>(block + layout.scales_offset()) + (is_value ? layout.num_scales() : 0);
      scales[head * layout.block_size + offset] = codes.scale;
      return write_head(layout, reinterpret_cast<int8_t*>(target), is_value, offset, x,
                        [&](float v) { return codes.code(v); });
    }
  }
}

}  // namespace

KVType kv_type(const std::string& name) {
  if (name == "bfloat16") return KVType::kBf16;
  if (name == "float32") return KVType::kF32;
  if (name == "int8") return KVType::kInt8;
  throw Refusal("the native backend's KV cache is bfloat16, float32 or int8, not " + name);
}

KVCache::KVCache(int num_layers, int64_t num_blocks, int block_size, int num_kv_heads, int head_dim, KVType type)
    : num_layers_(num_layers), num_blocks_(num_blocks),
      layout_(checked_layout(type, block_size, num_kv_heads, head_dim)), block_bytes_(layout_.block_bytes()),
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
      write_token(layout_, block, h, false, offset, k.head(row, h));
      write_token(layout_, block, h, true, offset, v.head(row, h));
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
