// How each kind of packed matrix widens to floats, group by group.
#pragma once

#include "kernels/kernels.h"
#include "simd/unroll.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

// `widen(p, step)` reads kBytes of codes and calls step(column, values) for kColumns columns of 16 features, in order and
// one by one, so that few registers are taken at a time. `column` is a Constant.
struct NibbleCodes {
  static constexpr int kBytes = 64, kColumns = 8;
  F32x16 table;
  explicit NibbleCodes(const PackedMatrix& w) : table(load(w.values)) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, const Step& step) const {
    const U32x16 x = load_u32(p);
    unroll<kColumns>([&](auto c) __attribute__((always_inline)) {
      step(c, lookup16(table, shift_right<c % 2 * 16 + c / 2 * 4>(x)));
    });
  }
};

// Nibbles that stand for themselves: converted, where that is faster than a look-up.
struct PlainNibbleCodes {
  static constexpr int kBytes = 64, kColumns = 8;
  explicit PlainNibbleCodes(const PackedMatrix&) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, const Step& step) const {
    const U32x16 x = load_u32(p), low_bits = broadcast_u32(15);
    unroll<kColumns>([&](auto c) __attribute__((always_inline)) {
      const U32x16 shifted = shift_right<c % 2 * 16 + c / 2 * 4>(x);
      step(c, to_float(c == kColumns - 1 ? shifted : and_u32(shifted, low_bits)));
    });
  }
};

struct ByteCodes {
  static constexpr int kBytes = 64, kColumns = 4;
  explicit ByteCodes(const PackedMatrix&) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, const Step& step) const {
    const U32x16 x = load_u32(p);
    unroll<kColumns>([&](auto c) __attribute__((always_inline)) { step(c, signed_byte<c % 2 * 2 + c / 2>(x)); });
  }
};

struct Bf16Codes {
  static constexpr int kBytes = 64, kColumns = 2;
  explicit Bf16Codes(const PackedMatrix&) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, const Step& step) const {
    const U32x16 x = load_u32(p);
    step(Constant<0>{}, even_bf16(x));
    step(Constant<1>{}, odd_bf16(x));
  }
};

struct F16Codes {
  static constexpr int kBytes = 64, kColumns = 2;
  explicit F16Codes(const PackedMatrix&) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, const Step& step) const {
    step(Constant<0>{}, load_f16(reinterpret_cast<const uint16_t*>(p)));
    step(Constant<1>{}, load_f16(reinterpret_cast<const uint16_t*>(p) + kPanel));
  }
};

struct F32Codes {
  static constexpr int kBytes = 128, kColumns = 2;
  explicit F32Codes(const PackedMatrix&) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, const Step& step) const {
    step(Constant<0>{}, load(reinterpret_cast<const float*>(p)));
    step(Constant<1>{}, load(reinterpret_cast<const float*>(p) + kPanel));
  }
};

template <ScaleKind kind>
OCTAVO_INLINE F32x16 load_scales(const uint8_t* scales, int64_t group) {
  if constexpr (kind == ScaleKind::kF16) {
    return load_f16(reinterpret_cast<const uint16_t*>(scales) + group * kPanel);
  } else {
    return load(reinterpret_cast<const float*>(scales) + group * kPanel);
  }
}

// The two parts of minima, as kernels/packed_matrix.h cuts them. What is left of a half is exact in bfloat16: the mask
// that rounds everything else only cuts NaNs.
OCTAVO_INLINE F32x16 high_part(F32x16 minimum) { return from_bits(and_u32(bits(minimum), broadcast_u32(0xffff0000u))); }
template <ScaleKind kind>
OCTAVO_INLINE F32x16 low_part(F32x16 minimum) {
  const F32x16 left = sub(minimum, high_part(minimum));
  return kind == ScaleKind::kF16 ? high_part(left) : round_to_bf16(left);
}

// Calls f.template operator()<ScaleKind, has minima>() for what the matrix has.
template <class F>
void with_scales(const PackedMatrix& w, F&& f) {
  if (w.scale_kind == ScaleKind::kF16) {
    w.has_minima ? f.template operator()<ScaleKind::kF16, true>() : f.template operator()<ScaleKind::kF16, false>();
  } else {
    w.has_minima ? f.template operator()<ScaleKind::kF32, true>() : f.template operator()<ScaleKind::kF32, false>();
  }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
