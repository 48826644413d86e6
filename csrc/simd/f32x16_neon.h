// F32x16 as four NEON registers (AArch64). See simd/f32x16.h for what each operation means.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace octavo::OCTAVO_ISA_NAMESPACE {

struct F32x16 {
  float32x4_t q0, q1, q2, q3;
};
struct U32x16 {
  uint32x4_t q0, q1, q2, q3;
};

// One instruction for each quarter of sixteen lanes.
#define OCTAVO_ONE(type, f, x) type{f((x).q0), f((x).q1), f((x).q2), f((x).q3)}
#define OCTAVO_TWO(type, f, x, y) type{f((x).q0, (y).q0), f((x).q1, (y).q1), f((x).q2, (y).q2), f((x).q3, (y).q3)}

inline F32x16 broadcast(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
inline F32x16 zero_f32() { return broadcast(0.0f); }
inline F32x16 load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
inline F32x16 load_once(const float* p) { return load(p); }
inline void store(float* p, F32x16 x) {
  vst1q_f32(p, x.q0);
  vst1q_f32(p + 4, x.q1);
  vst1q_f32(p + 8, x.q2);
  vst1q_f32(p + 12, x.q3);
}
inline F32x16 load_partial(const float* p, int n) {
  float lanes[16] = {};
  for (int i = 0; i < n && i < 16; ++i) lanes[i] = p[i];
  return load(lanes);
}
inline void store_partial(float* p, int n, F32x16 x) {
  float lanes[16];
  store(lanes, x);
  for (int i = 0; i < n && i < 16; ++i) p[i] = lanes[i];
}

inline F32x16 add(F32x16 x, F32x16 y) { return OCTAVO_TWO(F32x16, vaddq_f32, x, y); }
inline F32x16 sub(F32x16 x, F32x16 y) { return OCTAVO_TWO(F32x16, vsubq_f32, x, y); }
inline F32x16 mul(F32x16 x, F32x16 y) { return OCTAVO_TWO(F32x16, vmulq_f32, x, y); }
inline F32x16 div(F32x16 x, F32x16 y) { return OCTAVO_TWO(F32x16, vdivq_f32, x, y); }
inline F32x16 fma(F32x16 x, F32x16 y, F32x16 z) {
  return {vfmaq_f32(z.q0, x.q0, y.q0), vfmaq_f32(z.q1, x.q1, y.q1), vfmaq_f32(z.q2, x.q2, y.q2),
          vfmaq_f32(z.q3, x.q3, y.q3)};
}
// The second operand if either is a NaN, which NEON's own maximum does not give.
inline float32x4_t larger(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
inline F32x16 max(F32x16 x, F32x16 y) { return OCTAVO_TWO(F32x16, larger, x, y); }
inline F32x16 negate(F32x16 x) { return OCTAVO_ONE(F32x16, vnegq_f32, x); }

inline float32x4_t widen_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline F32x16 load_f16(const uint16_t* p) {
  return {widen_f16(p), widen_f16(p + 4), widen_f16(p + 8), widen_f16(p + 12)};
}
inline F32x16 load_i8(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
          vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))};
}
template <int parity>
F32x16 load_every_other(const float* p) {
  return {vld2q_f32(p).val[parity], vld2q_f32(p + 8).val[parity], vld2q_f32(p + 16).val[parity],
          vld2q_f32(p + 24).val[parity]};
}
inline F32x16 load_even(const float* p) { return load_every_other<0>(p); }
inline F32x16 load_odd(const float* p) { return load_every_other<1>(p); }

inline U32x16 bits(F32x16 x) { return OCTAVO_ONE(U32x16, vreinterpretq_u32_f32, x); }
inline F32x16 from_bits(U32x16 x) { return OCTAVO_ONE(F32x16, vreinterpretq_f32_u32, x); }
inline U32x16 load_u32(const void* p) {
  const uint8_t* bytes = static_cast<const uint8_t*>(p);
  return {vreinterpretq_u32_u8(vld1q_u8(bytes)), vreinterpretq_u32_u8(vld1q_u8(bytes + 16)),
          vreinterpretq_u32_u8(vld1q_u8(bytes + 32)), vreinterpretq_u32_u8(vld1q_u8(bytes + 48))};
}
inline U32x16 load_u32_once(const void* p) { return load_u32(p); }
inline void store_u32(void* p, U32x16 x) {
  uint8_t* bytes = static_cast<uint8_t*>(p);
  vst1q_u8(bytes, vreinterpretq_u8_u32(x.q0));
  vst1q_u8(bytes + 16, vreinterpretq_u8_u32(x.q1));
  vst1q_u8(bytes + 32, vreinterpretq_u8_u32(x.q2));
  vst1q_u8(bytes + 48, vreinterpretq_u8_u32(x.q3));
}
inline U32x16 broadcast_u32(uint32_t x) {
  const uint32x4_t v = vdupq_n_u32(x);
  return {v, v, v, v};
}
template <int n>
U32x16 shift_left(U32x16 x) {
  return {vshlq_n_u32(x.q0, n), vshlq_n_u32(x.q1, n), vshlq_n_u32(x.q2, n), vshlq_n_u32(x.q3, n)};
}
template <int n>
U32x16 shift_right(U32x16 x) {
  if constexpr (n == 0) {  // which the instruction cannot say
    return x;
  } else {
    return {vshrq_n_u32(x.q0, n), vshrq_n_u32(x.q1, n), vshrq_n_u32(x.q2, n), vshrq_n_u32(x.q3, n)};
  }
}
inline U32x16 add_u32(U32x16 x, U32x16 y) { return OCTAVO_TWO(U32x16, vaddq_u32, x, y); }
inline U32x16 and_u32(U32x16 x, U32x16 y) { return OCTAVO_TWO(U32x16, vandq_u32, x, y); }

inline float32x4_t convert(uint32x4_t x) { return vcvtq_f32_s32(vreinterpretq_s32_u32(x)); }
inline F32x16 to_float(U32x16 x) { return OCTAVO_ONE(F32x16, convert, x); }
inline uint32x4_t nearest(float32x4_t x) { return vreinterpretq_u32_s32(vcvtnq_s32_f32(x)); }
inline U32x16 to_int(F32x16 x) { return OCTAVO_ONE(U32x16, nearest, x); }
inline void store_i16(int16_t* p, U32x16 x) {
  vst1_s16(p, vmovn_s32(vreinterpretq_s32_u32(x.q0)));
  vst1_s16(p + 4, vmovn_s32(vreinterpretq_s32_u32(x.q1)));
  vst1_s16(p + 8, vmovn_s32(vreinterpretq_s32_u32(x.q2)));
  vst1_s16(p + 12, vmovn_s32(vreinterpretq_s32_u32(x.q3)));
}
inline uint32x4_t dot_pairs(uint32x4_t x, uint32x4_t y) {
  const int16x8_t a = vreinterpretq_s16_u32(x), b = vreinterpretq_s16_u32(y);
  return vreinterpretq_u32_s32(vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)));
}
inline U32x16 add_dot_pairs(U32x16 sum, U32x16 a, U32x16 b) { return add_u32(sum, OCTAVO_TWO(U32x16, dot_pairs, a, b)); }
inline uint32x4_t extend_low(uint32x4_t x) {
  return vreinterpretq_u32_s16(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_u32(x), 8), 8));
}
inline uint32x4_t extend_high(uint32x4_t x) { return vreinterpretq_u32_s16(vshrq_n_s16(vreinterpretq_s16_u32(x), 8)); }
inline U32x16 low_bytes(U32x16 x) { return OCTAVO_ONE(U32x16, extend_low, x); }
inline U32x16 high_bytes(U32x16 x) { return OCTAVO_ONE(U32x16, extend_high, x); }
inline U32x16 repeat_bytes(const uint8_t* table) {
  const uint32x4_t v = vreinterpretq_u32_u8(vld1q_u8(table));
  return {v, v, v, v};
}
inline uint32x4_t entries(uint32x4_t table, uint32x4_t index) {
  return vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(table), vreinterpretq_u8_u32(index)));
}
inline U32x16 lookup_bytes(U32x16 table, U32x16 index) { return OCTAVO_TWO(U32x16, entries, table, index); }

inline F32x16 select_less(F32x16 x, F32x16 y, F32x16 yes, F32x16 no) {
  return {vbslq_f32(vcltq_f32(x.q0, y.q0), yes.q0, no.q0), vbslq_f32(vcltq_f32(x.q1, y.q1), yes.q1, no.q1),
          vbslq_f32(vcltq_f32(x.q2, y.q2), yes.q2, no.q2), vbslq_f32(vcltq_f32(x.q3, y.q3), yes.q3, no.q3)};
}
inline F32x16 select_nan(F32x16 x, F32x16 yes, F32x16 no) {
  return {vbslq_f32(vceqq_f32(x.q0, x.q0), no.q0, yes.q0), vbslq_f32(vceqq_f32(x.q1, x.q1), no.q1, yes.q1),
          vbslq_f32(vceqq_f32(x.q2, x.q2), no.q2, yes.q2), vbslq_f32(vceqq_f32(x.q3, x.q3), no.q3, yes.q3)};
}
inline F32x16 select_range(F32x16 x, int low, int high, F32x16 fill) {
  const int32x4_t lane = {0, 1, 2, 3}, from = vdupq_n_s32(low), to = vdupq_n_s32(high);
  const auto quarter = [&](int first, float32x4_t inside, float32x4_t outside) {
    const int32x4_t i = vaddq_s32(lane, vdupq_n_s32(first));
    return vbslq_f32(vandq_u32(vcgeq_s32(i, from), vcltq_s32(i, to)), inside, outside);
  };
  return {quarter(0, x.q0, fill.q0), quarter(4, x.q1, fill.q1), quarter(8, x.q2, fill.q2), quarter(12, x.q3, fill.q3)};
}

#undef OCTAVO_ONE
#undef OCTAVO_TWO

inline float reduce_add(F32x16 x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.q0, x.q2), vaddq_f32(x.q1, x.q3));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float reduce_max(F32x16 x) {
  const float32x4_t four = larger(larger(x.q0, x.q2), larger(x.q1, x.q3));
  const float32x2_t low = vget_low_f32(four), high = vget_high_f32(four);
  const float32x2_t two = vbsl_f32(vcgt_f32(low, high), low, high);
  const float first = vget_lane_f32(two, 0), second = vget_lane_f32(two, 1);
  return first > second ? first : second;
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
