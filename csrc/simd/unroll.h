// Loops whose index is a constant in every turn, so that arrays of registers really stay in registers.
#pragma once

#define OCTAVO_INLINE inline __attribute__((always_inline))

namespace octavo::OCTAVO_ISA_NAMESPACE {

template <int kValue>
struct Constant {
  constexpr operator int() const { return kValue; }
};

// f(Constant<0>) … f(Constant<kCount - 1>).
template <int kCount, int kFirst = 0, class F>
OCTAVO_INLINE void unroll(const F& f) {
  if constexpr (kFirst < kCount) {
    f(Constant<kFirst>{});
    unroll<kCount, kFirst + 1>(f);
  }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
