// How each kind of packed matrix widens to what a product works with, pair row by pair row.
#pragma once

#include "kernels/kernels.h"
#include "simd/unroll.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

// A pair row of numbers. One of codes is a U32x16: whole numbers of 16 bits, the even ones low, the odd ones high.
struct NumberPairs {
  F32x16 even, odd;
};

// `widen(p, step)` reads kBytes of elements and calls step(pair, values) for kPairs pair rows, one by one, so that few
// registers are taken at a time. `pair` is a Constant.
struct NibbleElements {  // that stand for themselves
  static constexpr int kBytes = 64, kPairs = 4;
  explicit NibbleElements(const PackedMatrix&) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, const Step& step) const {
    const U32x16 x = load_u32(p), nibble = broadcast_u32(0x000f000f);
    unroll<kPairs>([&](auto r) __attribute__((always_inline)) { step(r, and_u32(shift_right<4 * r>(x), nibble)); });
  }
};

struct TableElements {  // nibbles that a table explains
  static constexpr int kBytes = 64, kPairs = 4;
  U32x16 table;
  explicit TableElements(const PackedMatrix& w) : table(repeat_bytes(w.values)) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, const Step& step) const {
    const NibbleElements codes{PackedMatrix{}};
    codes.widen(p, [&](auto r, U32x16 x) __attribute__((always_inline)) { step(r, lookup_bytes(table, x)); });
  }
};

struct ByteElements {
  static constexpr int kBytes = 128, kPairs = 4;
  explicit ByteElements(const PackedMatrix&) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, const Step& step) const {
    const U32x16 x = load_u32(p), y = load_u32(p + 64);
    step(Constant<0>{}, low_bytes(x));
    step(Constant<1>{}, low_bytes(y));
    step(Constant<2>{}, high_bytes(x));
    step(Constant<3>{}, high_bytes(y));
  }
};

struct Bf16Elements {
  static constexpr int kBytes = 64, kPairs = 1;
  explicit Bf16Elements(const PackedMatrix&) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, const Step& step) const {
    const U32x16 x = load_u32(p);
    step(Constant<0>{}, NumberPairs{even_bf16(x), odd_bf16(x)});
  }
};

struct F16Elements {
  static constexpr int kBytes = 64, kPairs = 1;
  explicit F16Elements(const PackedMatrix&) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, const Step& step) const {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(p);
    step(Constant<0>{}, NumberPairs{load_f16(halves), load_f16(halves + kPanel)});
  }
};

struct F32Elements {
  static constexpr int kBytes = 128, kPairs = 1;
  explicit F32Elements(const PackedMatrix&) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, const Step& step) const {
    const float* numbers = reinterpret_cast<const float*>(p);
    step(Constant<0>{}, NumberPairs{load(numbers), load(numbers + kPanel)});
  }
};

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
