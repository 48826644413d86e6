// F32x16 as two AVX2 registers. See simd/f32x16.h for what each operation means.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace octavo::OCTAVO_ISA_NAMESPACE {

struct F32x16 {
  __m256 low, high;
};
struct U32x16 {
  __m256i low, high;
};

// All ones in lanes first … first + 7 that are below n.
inline __m256i lanes_below(int n, int first) {
  const __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
}

inline F32x16 zero_f32() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32x16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
// A load that stays one: the compiler would rather repeat it as an operand of every use, and the load units are busy.
inline F32x16 load_once(const float* p) {
  __m256 low = _mm256_loadu_ps(p), high = _mm256_loadu_ps(p + 8);
  __asm__("" : "+x"(low));
  __asm__("" : "+x"(high));
  return {low, high};
}
inline void store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
inline F32x16 load_partial(const float* p, int n) {
  return {_mm256_maskload_ps(p, lanes_below(n, 0)), _mm256_maskload_ps(p + 8, lanes_below(n, 8))};
}
inline void store_partial(float* p, int n, F32x16 x) {
  _mm256_maskstore_ps(p, lanes_below(n, 0), x.low);
  _mm256_maskstore_ps(p + 8, lanes_below(n, 8), x.high);
}

inline F32x16 add(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline F32x16 sub(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline F32x16 mul(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline F32x16 div(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline F32x16 max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }

inline F32x16 load_f16(const uint16_t* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}

inline F32x16 load_i8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes)))};
}

template <int parity>
__m256 every_other(const float* p) {
  const __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8);
  const __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
  return _mm256_shuffle_ps(low, high, parity ? 0xdd : 0x88);
}
inline F32x16 load_even(const float* p) { return {every_other<0>(p), every_other<0>(p + 16)}; }
inline F32x16 load_odd(const float* p) { return {every_other<1>(p), every_other<1>(p + 16)}; }

inline U32x16 bits(F32x16 x) { return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)}; }
inline F32x16 from_bits(U32x16 x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }
inline U32x16 load_u32(const void* p) {
  const __m256i* words = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
}
inline U32x16 load_u32_once(const void* p) {
  U32x16 x = load_u32(p);
  __asm__("" : "+x"(x.low));
  __asm__("" : "+x"(x.high));
  return x;
}
inline void store_u32(void* p, U32x16 x) {
  __m256i* words = static_cast<__m256i*>(p);
  _mm256_storeu_si256(words, x.low);
  _mm256_storeu_si256(words + 1, x.high);
}
inline U32x16 broadcast_u32(uint32_t x) {
  const __m256i v = _mm256_set1_epi32(static_cast<int>(x));
  return {v, v};
}
template <int n>
U32x16 shift_left(U32x16 x) {
  return {_mm256_slli_epi32(x.low, n), _mm256_slli_epi32(x.high, n)};
}
template <int n>
U32x16 shift_right(U32x16 x) {
  return {_mm256_srli_epi32(x.low, n), _mm256_srli_epi32(x.high, n)};
}
inline U32x16 add_u32(U32x16 a, U32x16 b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline U32x16 and_u32(U32x16 a, U32x16 b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }

inline F32x16 to_float(U32x16 x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
inline U32x16 to_int(F32x16 x) { return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)}; }
inline void store_i16(int16_t* p, U32x16 x) {
  const __m256i mixed = _mm256_packs_epi32(x.low, x.high);  // 0-3 8-11 4-7 12-15
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0xd8));
}
// The sum stays a chain: the compiler would rather add products first, and has no registers for them.
inline U32x16 add_dot_pairs(U32x16 sum, U32x16 a, U32x16 b) {
  sum.low = _mm256_add_epi32(sum.low, _mm256_madd_epi16(a.low, b.low));
  __asm__("" : "+x"(sum.low));
  sum.high = _mm256_add_epi32(sum.high, _mm256_madd_epi16(a.high, b.high));
  __asm__("" : "+x"(sum.high));
  return sum;
}
inline U32x16 low_bytes(U32x16 x) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(x.low, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(x.high, 8), 8)};
}
inline U32x16 high_bytes(U32x16 x) { return {_mm256_srai_epi16(x.low, 8), _mm256_srai_epi16(x.high, 8)}; }
inline U32x16 repeat_bytes(const uint8_t* table) {
  const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {v, v};
}
inline U32x16 lookup_bytes(U32x16 table, U32x16 index) {
  return {_mm256_shuffle_epi8(table.low, index.low), _mm256_shuffle_epi8(table.high, index.high)};
}

inline F32x16 negate(F32x16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(x.low, sign), _mm256_xor_ps(x.high, sign)};
}
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 yes, F32x16 no) {
  return {_mm256_blendv_ps(no.low, yes.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.high, yes.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
inline F32x16 select_nan(F32x16 x, F32x16 yes, F32x16 no) {
  return {_mm256_blendv_ps(no.low, yes.low, _mm256_cmp_ps(x.low, x.low, _CMP_UNORD_Q)),
          _mm256_blendv_ps(no.high, yes.high, _mm256_cmp_ps(x.high, x.high, _CMP_UNORD_Q))};
}
inline F32x16 select_range(F32x16 x, int low, int high, F32x16 fill) {
  const __m256i keep0 = _mm256_andnot_si256(lanes_below(low, 0), lanes_below(high, 0));
  const __m256i keep1 = _mm256_andnot_si256(lanes_below(low, 8), lanes_below(high, 8));
  return {_mm256_blendv_ps(fill.low, x.low, _mm256_castsi256_ps(keep0)),
          _mm256_blendv_ps(fill.high, x.high, _mm256_castsi256_ps(keep1))};
}

inline float reduce_add(F32x16 x) {
  const __m256 a = _mm256_add_ps(x.low, x.high);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
inline float reduce_max(F32x16 x) {
  const __m256 a = _mm256_max_ps(x.low, x.high);
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
