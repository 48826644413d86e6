// Largest value and sum of exponentials of a long row of logits.
#include "kernels/kernels.h"
#include "simd/exp.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

// Of n >= 1 values; a NaN if any of them is one.
float max_value(const float* x, int64_t n) {
  const F32x16 minus_infinity = from_bits(broadcast_u32(0xff800000u));
  F32x16 best = minus_infinity, nan = zero_f32();
  for (int64_t i = 0; i < n; i += 16) {
    const int lanes = n - i < 16 ? static_cast<int>(n - i) : 16;
    const F32x16 v = lanes == 16 ? load(x + i) : select_range(load_partial(x + i, lanes), 0, lanes, minus_infinity);
    best = max(v, best);
    nan = select_nan(v, v, nan);
  }
  const float damage = reduce_add(nan);
  return damage == 0 ? reduce_max(best) : damage;
}

// Sum of exp(x - shift): lane-wise over runs of 1,024, the runs added in double. The terms go to `terms` unless null.
double sum_exp(const float* x, int64_t n, float shift, float* terms) {
  const F32x16 offset = broadcast(shift), minus_infinity = from_bits(broadcast_u32(0xff800000u));
  double total = 0;
  for (int64_t run = 0; run < n; run += 1024) {
    const int64_t end = run + 1024 < n ? run + 1024 : n;
    F32x16 sum = zero_f32();
    for (int64_t i = run; i < end; i += 16) {
      const int lanes = end - i < 16 ? static_cast<int>(end - i) : 16;
      const F32x16 v = lanes == 16 ? load(x + i) : select_range(load_partial(x + i, lanes), 0, lanes, minus_infinity);
      const F32x16 term = exp(sub(v, offset));
      sum = add(sum, term);
      if (terms) store_partial(terms + i, lanes, term);
    }
    total += static_cast<double>(reduce_add(sum));
  }
  return total;
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
