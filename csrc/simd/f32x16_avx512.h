// F32x16 as one AVX-512 register. See simd/f32x16.h for what each operation means.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace octavo::OCTAVO_ISA_NAMESPACE {

struct F32x16 {
  __m512 v;
};
struct U32x16 {
  __m512i v;
};

// The `n` low lanes; n may be any number, lanes are 0 … 15.
inline __mmask16 first_lanes(int n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1); }

inline F32x16 zero_f32() { return {_mm512_setzero_ps()}; }
inline F32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F32x16 load_once(const float* p) { return load(p); }
inline void store(float* p, F32x16 x) { _mm512_storeu_ps(p, x.v); }
inline F32x16 load_partial(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline void store_partial(float* p, int n, F32x16 x) { _mm512_mask_storeu_ps(p, first_lanes(n), x.v); }

inline F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }

inline F32x16 load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

inline F32x16 load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

inline F32x16 load_every_other(const float* p, int parity) {
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i lanes = _mm512_add_epi32(evens, _mm512_set1_epi32(parity));
  return {_mm512_permutex2var_ps(_mm512_loadu_ps(p), lanes, _mm512_loadu_ps(p + 16))};
}
inline F32x16 load_even(const float* p) { return load_every_other(p, 0); }
inline F32x16 load_odd(const float* p) { return load_every_other(p, 1); }

inline U32x16 bits(F32x16 x) { return {_mm512_castps_si512(x.v)}; }
inline F32x16 from_bits(U32x16 x) { return {_mm512_castsi512_ps(x.v)}; }
inline U32x16 load_u32(const void* p) { return {_mm512_loadu_si512(p)}; }
inline U32x16 load_u32_once(const void* p) { return load_u32(p); }
inline void store_u32(void* p, U32x16 x) { _mm512_storeu_si512(p, x.v); }
inline U32x16 broadcast_u32(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
template <int n>
U32x16 shift_left(U32x16 x) {
  return {_mm512_slli_epi32(x.v, n)};
}
template <int n>
U32x16 shift_right(U32x16 x) {
  return {_mm512_srli_epi32(x.v, n)};
}
inline U32x16 add_u32(U32x16 a, U32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline U32x16 and_u32(U32x16 a, U32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
inline F32x16 to_float(U32x16 x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline U32x16 to_int(F32x16 x) { return {_mm512_cvtps_epi32(x.v)}; }
inline void store_i16(int16_t* p, U32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.v));
}
inline U32x16 add_dot_pairs(U32x16 sum, U32x16 a, U32x16 b) { return {_mm512_dpwssd_epi32(sum.v, a.v, b.v)}; }
inline U32x16 low_bytes(U32x16 x) { return {_mm512_srai_epi16(_mm512_slli_epi16(x.v, 8), 8)}; }
inline U32x16 high_bytes(U32x16 x) { return {_mm512_srai_epi16(x.v, 8)}; }
inline U32x16 repeat_bytes(const uint8_t* table) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)))};
}
inline U32x16 lookup_bytes(U32x16 table, U32x16 index) { return {_mm512_shuffle_epi8(table.v, index.v)}; }

inline F32x16 negate(F32x16 x) { return {_mm512_castsi512_ps(_mm512_xor_si512(bits(x).v, _mm512_set1_epi32(INT32_MIN)))}; }
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 yes, F32x16 no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
inline F32x16 select_nan(F32x16 x, F32x16 yes, F32x16 no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), no.v, yes.v)};
}
inline F32x16 select_range(F32x16 x, int low, int high, F32x16 fill) {
  const __mmask16 keep = static_cast<__mmask16>(first_lanes(high) & ~first_lanes(low));
  return {_mm512_mask_blend_ps(keep, fill.v, x.v)};
}

inline float reduce_add(F32x16 x) {
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
inline float reduce_max(F32x16 x) {
  const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
