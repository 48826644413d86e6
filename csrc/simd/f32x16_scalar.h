// F32x16 as an array: the slow twin that every machine can run. See simd/f32x16.h for what each operation means.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd/half.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

struct F32x16 {
  float v[16];
};
struct U32x16 {
  uint32_t v[16];
};

// A lane-wise result: LANES(F32x16, a.v[i] + b.v[i]).
#define OCTAVO_LANES(type, expression)                  \
  type r;                                               \
  for (int i = 0; i < 16; ++i) r.v[i] = (expression);   \
  return r

inline F32x16 broadcast(float x) { OCTAVO_LANES(F32x16, x); }
inline F32x16 zero_f32() { return broadcast(0.0f); }
inline F32x16 load(const float* p) { OCTAVO_LANES(F32x16, p[i]); }
inline F32x16 load_once(const float* p) { return load(p); }
inline void store(float* p, F32x16 x) { std::memcpy(p, x.v, sizeof x.v); }
inline F32x16 load_partial(const float* p, int n) { OCTAVO_LANES(F32x16, i < n ? p[i] : 0.0f); }
inline void store_partial(float* p, int n, F32x16 x) {
  for (int i = 0; i < n && i < 16; ++i) p[i] = x.v[i];
}

inline F32x16 add(F32x16 a, F32x16 b) { OCTAVO_LANES(F32x16, a.v[i] + b.v[i]); }
inline F32x16 sub(F32x16 a, F32x16 b) { OCTAVO_LANES(F32x16, a.v[i] - b.v[i]); }
inline F32x16 mul(F32x16 a, F32x16 b) { OCTAVO_LANES(F32x16, a.v[i] * b.v[i]); }
inline F32x16 div(F32x16 a, F32x16 b) { OCTAVO_LANES(F32x16, a.v[i] / b.v[i]); }
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { OCTAVO_LANES(F32x16, std::fma(a.v[i], b.v[i], c.v[i])); }
// As the vector instructions have it: the second operand if either is a NaN.
inline F32x16 max(F32x16 a, F32x16 b) { OCTAVO_LANES(F32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }

inline F32x16 load_f16(const uint16_t* p) { OCTAVO_LANES(F32x16, half_to_float(p[i])); }

inline F32x16 load_i8(const int8_t* p) { OCTAVO_LANES(F32x16, static_cast<float>(p[i])); }

inline F32x16 load_even(const float* p) { OCTAVO_LANES(F32x16, p[2 * i]); }
inline F32x16 load_odd(const float* p) { OCTAVO_LANES(F32x16, p[2 * i + 1]); }

inline U32x16 bits(F32x16 x) {
  U32x16 r;
  std::memcpy(r.v, x.v, sizeof r.v);
  return r;
}
inline F32x16 from_bits(U32x16 x) {
  F32x16 r;
  std::memcpy(r.v, x.v, sizeof r.v);
  return r;
}
inline U32x16 load_u32(const void* p) {
  U32x16 r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
inline U32x16 load_u32_once(const void* p) { return load_u32(p); }
inline void store_u32(void* p, U32x16 x) { std::memcpy(p, x.v, sizeof x.v); }
inline U32x16 broadcast_u32(uint32_t x) { OCTAVO_LANES(U32x16, x); }
template <int n>
U32x16 shift_left(U32x16 x) {
  OCTAVO_LANES(U32x16, x.v[i] << n);
}
template <int n>
U32x16 shift_right(U32x16 x) {
  OCTAVO_LANES(U32x16, x.v[i] >> n);
}
inline U32x16 add_u32(U32x16 a, U32x16 b) { OCTAVO_LANES(U32x16, a.v[i] + b.v[i]); }
inline U32x16 and_u32(U32x16 a, U32x16 b) { OCTAVO_LANES(U32x16, a.v[i] & b.v[i]); }
inline F32x16 to_float(U32x16 x) { OCTAVO_LANES(F32x16, static_cast<float>(static_cast<int32_t>(x.v[i]))); }
inline U32x16 to_int(F32x16 x) { OCTAVO_LANES(U32x16, static_cast<uint32_t>(std::lrintf(x.v[i]))); }
inline void store_i16(int16_t* p, U32x16 x) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int16_t>(x.v[i]);
}
inline uint32_t dot_pair(uint32_t a, uint32_t b) {
  const auto low = [](uint32_t x) { return static_cast<int32_t>(static_cast<int16_t>(x)); };
  return static_cast<uint32_t>(low(a) * low(b) + low(a >> 16) * low(b >> 16));
}
inline U32x16 add_dot_pairs(U32x16 sum, U32x16 a, U32x16 b) { OCTAVO_LANES(U32x16, sum.v[i] + dot_pair(a.v[i], b.v[i])); }
inline uint32_t halves(int8_t low, int8_t high) {
  return static_cast<uint16_t>(low) | static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16;
}
inline U32x16 low_bytes(U32x16 x) {
  OCTAVO_LANES(U32x16, halves(static_cast<int8_t>(x.v[i]), static_cast<int8_t>(x.v[i] >> 16)));
}
inline U32x16 high_bytes(U32x16 x) {
  OCTAVO_LANES(U32x16, halves(static_cast<int8_t>(x.v[i] >> 8), static_cast<int8_t>(x.v[i] >> 24)));
}
inline U32x16 repeat_bytes(const uint8_t* table) {
  U32x16 r;
  for (int i = 0; i < 4; ++i) std::memcpy(r.v + 4 * i, table, 16);
  return r;
}
inline U32x16 lookup_bytes(U32x16 table, U32x16 index) {
  const uint8_t* entries = reinterpret_cast<const uint8_t*>(table.v);
  OCTAVO_LANES(U32x16, static_cast<uint32_t>(entries[index.v[i] & 255]) | entries[index.v[i] >> 8 & 255] << 8 |
                           entries[index.v[i] >> 16 & 255] << 16 | static_cast<uint32_t>(entries[index.v[i] >> 24]) << 24);
}

inline F32x16 negate(F32x16 x) { OCTAVO_LANES(F32x16, -x.v[i]); }
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 yes, F32x16 no) {
  OCTAVO_LANES(F32x16, a.v[i] < b.v[i] ? yes.v[i] : no.v[i]);
}
inline F32x16 select_nan(F32x16 x, F32x16 yes, F32x16 no) {
  OCTAVO_LANES(F32x16, std::isnan(x.v[i]) ? yes.v[i] : no.v[i]);
}
inline F32x16 select_range(F32x16 x, int low, int high, F32x16 fill) {
  OCTAVO_LANES(F32x16, i >= low && i < high ? x.v[i] : fill.v[i]);
}

#undef OCTAVO_LANES

inline float reduce_add(F32x16 x) {
  for (int width = 8; width; width /= 2) {
    for (int i = 0; i < width; ++i) x.v[i] = x.v[i] + x.v[i + width];
  }
  return x.v[0];
}
inline float reduce_max(F32x16 x) {
  for (int width = 8; width; width /= 2) {
    for (int i = 0; i < width; ++i) x.v[i] = x.v[i] > x.v[i + width] ? x.v[i] : x.v[i + width];
  }
  return x.v[0];
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
