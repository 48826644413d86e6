// Sixteen float lanes, whatever the instruction set.
//
// Every kernel is written once against F32x16 and U32x16 and compiled once per instruction set, in a namespace of its
// own. All operations are single IEEE operations per lane, and reductions are one fixed tree, so that every instruction
// set gives the same bits. Kernels run with denormals flushed to zero (runtime/float_mode.h).
//
// Lane operations that each header below defines:
//   zero_f32, broadcast, load, store, load_partial, store_partial, add, sub, mul, div, fma, max, negate
//   load_once                        a load whose result is used several times
//   load_f16                         sixteen IEEE halves
//   load_i8                          sixteen signed bytes
//   load_pairs(p, even, odd)         thirty-two numbers, those at even and those at odd places; float or bfloat16. Bytes
//                                    lie apart instead: sixteen that are called even, then sixteen odd ones
//   store_bf16                       the high halves of lanes that round_to_bf16 gave
//   bits, from_bits, load_u32, broadcast_u32, shift_left<n>, shift_right<n>, add_u32, and_u32, or_u32
//   lookup16(table, index)           one of sixteen floats by the low four bits of each lane
//   signed_byte<b>                   byte b of each lane as float
//   to_float                         lanes as signed integers, converted
//   select_less(a, b, yes, no)       a < b ? yes : no
//   select_range(v, low, high, fill) lanes low … high - 1 of v, fill elsewhere
//   reduce_add, reduce_max           lane i meets lane i + 8, then i + 4, i + 2, i + 1
#pragma once

#if defined(OCTAVO_ISA_AVX512) || defined(OCTAVO_ISA_AMX)
#include "simd/f32x16_avx512.h"
#elif defined(OCTAVO_ISA_AVX2)
#include "simd/f32x16_avx2.h"
#elif defined(OCTAVO_ISA_NEON)
#include "simd/f32x16_neon.h"
#else
#include "simd/f32x16_scalar.h"
#endif

namespace octavo::OCTAVO_ISA_NAMESPACE {

// The two bfloat16 of each 32-bit lane: the low (even) and the high (odd) one.
inline F32x16 even_bf16(U32x16 pairs) { return from_bits(shift_left<16>(pairs)); }
inline F32x16 odd_bf16(U32x16 pairs) { return from_bits(and_u32(pairs, broadcast_u32(0xffff0000u))); }

inline void load_pairs(const uint16_t* p, F32x16& even, F32x16& odd) {
  const U32x16 pairs = load_u32(p);
  even = even_bf16(pairs);
  odd = odd_bf16(pairs);
}

inline void load_pairs(const int8_t* p, F32x16& even, F32x16& odd) {
  even = load_i8(p);
  odd = load_i8(p + 16);
}

// Rounds to the nearest bfloat16, ties to even, kept as float. A NaN stays a NaN.
inline F32x16 round_to_bf16(F32x16 x) {
  const U32x16 u = bits(x);
  const U32x16 lsb = and_u32(shift_right<16>(u), broadcast_u32(1));
  const U32x16 rounded = and_u32(add_u32(u, add_u32(lsb, broadcast_u32(0x7fff))), broadcast_u32(0xffff0000u));
  // The carry would turn a NaN with a full mantissa into zero: NaNs are those that compare unequal to themselves.
  const F32x16 quiet = from_bits(or_u32(and_u32(u, broadcast_u32(0xffff0000u)), broadcast_u32(0x400000u)));
  return select_nan(x, quiet, from_bits(rounded));
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
