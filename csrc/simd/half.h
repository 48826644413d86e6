// Conversions of single numbers between float, IEEE half and bfloat16, exact or rounded to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

namespace octavo {

inline uint32_t float_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

inline float bits_float(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

// Exact, also with denormals flushed: a half's denormal is a normal float, made here by integer steps.
inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31;
  uint32_t mantissa = h & 0x3ff;
  if (exponent == 31) return bits_float(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0));
  if (exponent) return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (!mantissa) return bits_float(sign);
  uint32_t shifted = 113;
  for (; !(mantissa & 0x400); mantissa <<= 1) --shifted;
  return bits_float(sign | (shifted << 23) | ((mantissa & 0x3ff) << 13));
}

inline float bf16_to_float(uint16_t b) { return bits_float(static_cast<uint32_t>(b) << 16); }

inline uint16_t float_to_bf16(float x) {
  const uint32_t u = float_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

}  // namespace octavo
