// Rounds a row of activations to bfloat16 and sums it by groups: the left operand of a matmul.
#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

void round_row(const float* x, int64_t n, int64_t padded, float* values, uint16_t* bf16, float* sums, float* sums16) {
  for (int64_t k = 0; k < padded; k += 32) {
    const int left = static_cast<int>(n - k);
    const F32x16 a = round_to_bf16(left >= 16 ? load(x + k) : load_partial(x + k, left));
    const F32x16 b = round_to_bf16(left >= 32 ? load(x + k + 16) : left > 16 ? load_partial(x + k + 16, left - 16) : zero_f32());
    if (values) {
      store(values + k, a);
      store(values + k + 16, b);
    }
    if (bf16) {
      store_bf16(bf16 + k, a);
      store_bf16(bf16 + k + 16, b);
    }
    if (sums) sums[k / 32] = reduce_add(add(a, b));
    if (sums16) {
      sums16[k / 16] = reduce_add(a);
      sums16[k / 16 + 1] = reduce_add(b);
    }
  }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
