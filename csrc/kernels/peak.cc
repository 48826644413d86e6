// Independent fused multiply-adds with nothing else to do: the peak that a kernel's speed is compared with.
#include "kernels/kernels.h"
#include "simd/unroll.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

double burn(int64_t steps) {
  constexpr int kSums = 12;  // enough to hide the latency of two units
  F32x16 sums[kSums];
  unroll<kSums>([&](auto i) { sums[i] = broadcast(static_cast<float>(i)); });
  const F32x16 a = broadcast(0.5f), b = broadcast(1.0f);
  for (int64_t step = 0; step < steps; ++step) {
    unroll<kSums>([&](auto i) { sums[i] = fma(sums[i], a, b); });
  }
  float sink[16];
  unroll<kSums>([&](auto i) {
    store(sink, sums[i]);
    __asm__ volatile("" : : "r"(sink) : "memory");
  });
  return 2.0 * 16 * kSums * static_cast<double>(steps);
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
