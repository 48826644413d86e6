// Norms, activation functions and rotations of single rows.
#include <cmath>

#include "kernels/kernels.h"
#include "simd/exp.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

// x / sqrt(mean(x²) + epsilon) * weight. Four interleaved sums hide the latency of fma; they meet as (0+1) + (2+3).
void rms_norm(const float* x, const float* weight, float epsilon, int64_t n, float* out) {
  F32x16 sums[4] = {zero_f32(), zero_f32(), zero_f32(), zero_f32()};
  for (int64_t i = 0, lane = 0; i < n; i += 16, lane = (lane + 1) % 4) {
    const F32x16 v = load_up_to(x + i, n - i);
    sums[lane] = fma(v, v, sums[lane]);
  }
  const float sum = reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  const F32x16 factor = broadcast(1.0f / std::sqrt(sum / static_cast<float>(n) + epsilon));
  for (int64_t i = 0; i < n; i += 16) {
    store_up_to(out + i, n - i, mul(mul(load_up_to(x + i, n - i), factor), load_up_to(weight + i, n - i)));
  }
}

// residual += x
void add_rows(const float* x, float* residual, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    store_up_to(residual + i, n - i, add(load_up_to(residual + i, n - i), load_up_to(x + i, n - i)));
  }
}

// gate / (1 + exp(-gate)) * up
void silu_and_mul(const float* gate, const float* up, int64_t n, float* out) {
  const F32x16 one = broadcast(1.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const F32x16 g = load_up_to(gate + i, n - i);
    store_up_to(out + i, n - i, mul(div(g, add(one, exp(negate(g)))), load_up_to(up + i, n - i)));
  }
}

// Rotates the pairs (x[i], x[i + half]).
void rotate(float* x, const float* cosines, const float* sines, int64_t half) {
  for (int64_t i = 0; i < half; i += 16) {
    const F32x16 a = load_up_to(x + i, half - i), b = load_up_to(x + half + i, half - i);
    const F32x16 c = load_up_to(cosines + i, half - i), s = load_up_to(sines + i, half - i);
    store_up_to(x + i, half - i, sub(mul(a, c), mul(b, s)));
    store_up_to(x + half + i, half - i, add(mul(b, c), mul(a, s)));
  }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
