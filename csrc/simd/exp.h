// The exponential that softmax, SiLU and sampling share: one polynomial in single operations, equal on every ISA.
#pragma once

#include "simd/f32x16.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

// exp(x) with a relative error below 2e-7; 0 for x < -87, infinity for x > 88, NaN for NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite), exp(r) by the polynomial that minimises the largest error.
inline F32x16 exp(F32x16 x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which its low bits then hold
  const F32x16 shifted = fma(x, broadcast(1.44269504f), broadcast(kRound));
  const F32x16 n = sub(shifted, broadcast(kRound));
  F32x16 r = fma(n, broadcast(-0.693359375f), x);
  r = fma(n, broadcast(2.12194440e-4f), r);
  F32x16 p = broadcast(0.0013814539f);
  p = fma(p, r, broadcast(0.008368745f));
  p = fma(p, r, broadcast(0.04166839f));
  p = fma(p, r, broadcast(0.16666521f));
  p = fma(p, r, broadcast(0.49999994f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  const U32x16 exponent = add_u32(bits(shifted), broadcast_u32(127));
  F32x16 y = mul(p, from_bits(shift_left<23>(exponent)));
  y = select_less(x, broadcast(-87.0f), zero_f32(), y);
  return select_less(broadcast(88.0f), x, from_bits(broadcast_u32(0x7f800000u)), y);
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
