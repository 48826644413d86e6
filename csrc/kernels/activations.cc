// Rounds a row of activations to bfloat16 and sums it by groups: the left operand of a matmul.
#include <cstring>

#include "kernels/kernels.h"
#include "simd/half.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

void round_row(const float* x, int64_t n, int64_t padded, float* values, uint16_t* bf16, int64_t step) {
  for (int64_t k = 0; k < padded; k += 16) {
    const int64_t left = n - k;
    const F32x16 rounded = round_to_bf16(left >= 16 ? load(x + k) : load_partial(x + k, static_cast<int>(left)));
    store(values + k, rounded);
    if (bf16) store_bf16(bf16 + k / 32 * step + k % 32, rounded);
  }
}

void sum_groups(const float* values, int64_t padded, int group, int64_t padded_groups, float* pairs, uint16_t* bf16,
                int64_t step) {
  const int64_t num_groups = padded / group;
  for (int64_t first = 0; first < padded_groups; first += 16) {
    const int count = padded_groups - first < 16 ? static_cast<int>(padded_groups - first) : 16;
    alignas(64) float sum[16] = {}, high[16], low[16];
    for (int i = 0; i < count && first + i < num_groups; ++i) {
      const float* x = values + (first + i) * group;
      sum[i] = reduce_add(group == 32 ? add(load(x), load(x + 16)) : load(x));
    }
    const F32x16 rounded = round_to_bf16(load(sum));
    store(high, rounded);
    store(low, round_to_bf16(sub(load(sum), rounded)));
    for (int i = 0; i < count; ++i) {
      pairs[2 * (first + i)] = high[i];
      pairs[2 * (first + i) + 1] = low[i];
      if (!bf16) continue;
      const uint32_t pair = float_bits(high[i]) >> 16 | (float_bits(low[i]) & 0xffff0000u);
      uint16_t* columns = bf16 + (first + i) / 8 * step + (first + i) % 8 * 4;
      std::memcpy(columns, &pair, 4);
      std::memcpy(columns + 2, &pair, 4);
    }
  }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
