// The two arithmetics of kernels/packed_matrix.h, step by step: of numbers and of codes.
//
// Each says what it adds up (Sum) per group, from pairs of the left operand (Left) and pair rows of the matrix (Pair), and
// how a group's sum joins the result.
#pragma once

#include <cstring>

#include "kernels/matmul_elements.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

// kBlockRows: rows that share a widened pair row, whose sums fill the registers.
#if defined(OCTAVO_ISA_AVX512) || defined(OCTAVO_ISA_AMX)
constexpr int kNumberRows = 8, kWholeRows = 12;
#elif defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_NEON)
constexpr int kNumberRows = 3, kWholeRows = 5;
#else
constexpr int kNumberRows = 1, kWholeRows = 1;
#endif

class NumberArithmetic {
 public:
  using Left = float;
  using Pair = NumberPairs;
  struct Sum {
    F32x16 even, odd;
  };
  struct Factors {};
  static constexpr int kPairBytes = 128, kBlockRows = kNumberRows, kGroup = 32;

  NumberArithmetic(const PackedMatrix&, const Activations& a) : a_(a) {}

  const Left* left(int64_t row) const { return a_.values + row * a_.padded_columns; }
  OCTAVO_INLINE Sum start(int64_t, int64_t) const { return {zero_f32(), zero_f32()}; }
  OCTAVO_INLINE static void step(Sum& sum, const Left* x, const Pair& w) {
    sum.even = fma(broadcast(x[0]), w.even, sum.even);
    sum.odd = fma(broadcast(x[1]), w.odd, sum.odd);
  }
  OCTAVO_INLINE Factors factors(const uint8_t*, int64_t) const { return {}; }
  OCTAVO_INLINE F32x16 finish(const Sum& sum, Factors, int64_t, int64_t, F32x16 acc) const {
    return add(acc, add(sum.even, sum.odd));
  }

  OCTAVO_INLINE static void store_pair(uint8_t* target, const Pair& w) {
    store(reinterpret_cast<float*>(target), w.even);
    store(reinterpret_cast<float*>(target) + kPanel, w.odd);
  }
  // A pair row times pairs of R rows.
  template <int R>
  OCTAVO_INLINE static void step_rows(Sum (&sum)[R], const Left* const (&x)[R], int column, const uint8_t* pair) {
    const float* w = reinterpret_cast<const float*>(pair);
    const F32x16 even = load_once(w);
    unroll<R>([&](auto r) { sum[r].even = fma(broadcast(x[r][column]), even, sum[r].even); });
    const F32x16 odd = load_once(w + kPanel);
    unroll<R>([&](auto r) { sum[r].odd = fma(broadcast(x[r][column + 1]), odd, sum[r].odd); });
  }

 private:
  const Activations& a_;
};

enum class Shift { kNone, kOffset, kMinima };

template <ScaleKind kind>
OCTAVO_INLINE F32x16 load_scales(const uint8_t* scales, int64_t group) {
  if constexpr (kind == ScaleKind::kF16) {
    return load_f16(reinterpret_cast<const uint16_t*>(scales) + group * kPanel);
  } else {
    return load(reinterpret_cast<const float*>(scales) + group * kPanel);
  }
}

template <ScaleKind kScale, Shift kShift, int kGroup_>
class CodeArithmetic {
 public:
  using Left = int16_t;
  using Pair = U32x16;
  using Sum = U32x16;
  struct Factors {
    F32x16 scale, minimum;
  };
  static constexpr int kPairBytes = 64, kBlockRows = kWholeRows, kGroup = kGroup_;

  CodeArithmetic(const PackedMatrix& w, const Activations& a)
      : w_(w), a_(a), sums_(kGroup == 32 ? a.whole.sums : a.whole.sums16) {}

  const Left* left(int64_t row) const { return a_.whole.numbers + row * a_.padded_columns; }
  OCTAVO_INLINE Sum start(int64_t row, int64_t g) const {
    if constexpr (kShift != Shift::kOffset) return broadcast_u32(0);
    return broadcast_u32(static_cast<uint32_t>(-w_.offset * group_sum(row, g).whole));
  }
  OCTAVO_INLINE static void step(Sum& sum, const Left* x, const Pair& w) { sum = add_dot_pairs(sum, pair_at(x), w); }
  OCTAVO_INLINE Factors factors(const uint8_t* panel, int64_t g) const {
    const F32x16 scale = load_scales<kScale>(panel + w_.scales_offset, g);
    if constexpr (kShift != Shift::kMinima) return {scale, zero_f32()};
    return {scale, load_scales<kScale>(panel + w_.minima_offset, g)};
  }
  OCTAVO_INLINE F32x16 finish(const Sum& sum, const Factors& factors, int64_t row, int64_t g, F32x16 acc) const {
    const float step = a_.whole.steps[row * a_.num_steps() + g * kGroup / 32];
    acc = fma(factors.scale, mul(to_float(sum), broadcast(step)), acc);
    if constexpr (kShift != Shift::kMinima) return acc;
    return fma(factors.minimum, broadcast(group_sum(row, g).scaled), acc);
  }

  OCTAVO_INLINE static void store_pair(uint8_t* target, const Pair& w) { store_u32(target, w); }
  template <int R>
  OCTAVO_INLINE static void step_rows(Sum (&sum)[R], const Left* const (&x)[R], int column, const uint8_t* pair) {
    const U32x16 w = load_u32_once(pair);
    unroll<R>([&](auto r) { step(sum[r], x[r] + column, w); });
  }

 private:
  OCTAVO_INLINE static U32x16 pair_at(const Left* x) {
    uint32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    return broadcast_u32(pair);
  }
  OCTAVO_INLINE const GroupSum& group_sum(int64_t row, int64_t g) const { return sums_[row * w_.num_groups() + g]; }

  const PackedMatrix& w_;
  const Activations& a_;
  const GroupSum* const sums_;
};

// Calls f.template operator()<ScaleKind, Shift, group>() for what a matrix of codes has.
template <class F>
void with_code_arithmetic(const PackedMatrix& w, F&& f) {
  const auto with_shift = [&]<ScaleKind s, int g>() {
    if (w.has_minima) return f.template operator()<s, Shift::kMinima, g>();
    if (w.offset) return f.template operator()<s, Shift::kOffset, g>();
    f.template operator()<s, Shift::kNone, g>();
  };
  if (w.scale_kind == ScaleKind::kF16) return with_shift.template operator()<ScaleKind::kF16, 32>();
  if (w.group == 32) return with_shift.template operator()<ScaleKind::kF32, 32>();
  with_shift.template operator()<ScaleKind::kF32, 16>();
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
