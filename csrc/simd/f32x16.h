// Sixteen float lanes, whatever the instruction set.
//
// Every kernel is written once against F32x16 and U32x16 and compiled once per instruction set, in a namespace of its
// own. All operations are single IEEE operations per lane, and reductions are one fixed tree, so that every instruction
// set gives the same bits. Kernels run with denormals flushed to zero (runtime/float_mode.h).
//
// Lane operations that each header below defines:
//   zero_f32, broadcast, load, store, load_partial, store_partial, add, sub, mul, div, fma, max, negate
//   load_once, load_u32_once         a load whose result is used several times
//   load_f16                         sixteen IEEE halves
//   load_i8                          sixteen signed bytes
//   load_even, load_odd              of thirty-two numbers those at even or odd places; float or bfloat16. Bytes lie
//                                    apart instead: sixteen that are called even, then sixteen odd ones
//   bits, from_bits, load_u32, broadcast_u32, shift_left<n>, shift_right<n>, add_u32, and_u32
//   to_float, to_int                 lanes as signed integers, converted; to_int to the nearest, ties to even
//   store_i16                        lanes as signed integers, their low halves
//   add_dot_pairs(sum, a, b)         sum + a.low * b.low + a.high * b.high, of the signed 16-bit halves of each lane
//   low_bytes, high_bytes            the low or high byte of each 16-bit half, sign-extended to it
//   repeat_bytes, lookup_bytes       a table of sixteen bytes, and each byte's entry: bytes are below 16
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

inline F32x16 load_even(const uint16_t* p) { return even_bf16(load_u32(p)); }
inline F32x16 load_odd(const uint16_t* p) { return odd_bf16(load_u32(p)); }

inline F32x16 load_even(const int8_t* p) { return load_i8(p); }
inline F32x16 load_odd(const int8_t* p) { return load_i8(p + 16); }

// The end of a row: at most `left` numbers.
inline F32x16 load_up_to(const float* p, int64_t left) {
  return left >= 16 ? load(p) : load_partial(p, static_cast<int>(left));
}
inline void store_up_to(float* p, int64_t left, F32x16 x) {
  if (left >= 16) {
    store(p, x);
  } else {
    store_partial(p, static_cast<int>(left), x);
  }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
