// The AVX-512 instructions that the kernels use, each as what it means, on a machine with AVX2: so that the kernels' own
// AVX-512 code runs, and shows its bits, where there is no AVX-512. Included before every kernel source of the emulated
// targets (OCTAVO_EMULATE). GCC's vector types of 64 bytes exist on any x86-64; only their instructions do not.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace emulated {

struct Halves {
  __m256 low, high;
};
struct IntHalves {
  __m256i low, high;
};

inline Halves halves(__m512 x) {
  Halves h;
  std::memcpy(&h, &x, sizeof h);
  return h;
}
inline IntHalves halves(__m512i x) {
  IntHalves h;
  std::memcpy(&h, &x, sizeof h);
  return h;
}
inline __m512 joined(__m256 low, __m256 high) {
  const Halves h{low, high};
  __m512 x;
  std::memcpy(&x, &h, sizeof x);
  return x;
}
inline __m512i joined(__m256i low, __m256i high) {
  const IntHalves h{low, high};
  __m512i x;
  std::memcpy(&x, &h, sizeof x);
  return x;
}

// A lane-wise operation, by what AVX2 has for each half.
template <class X, class F>
auto by_halves(X x, const F& f) {
  const auto a = halves(x);
  return joined(f(a.low), f(a.high));
}
template <class X, class Y, class F>
auto by_halves(X x, Y y, const F& f) {
  const auto a = halves(x);
  const auto b = halves(y);
  return joined(f(a.low, b.low), f(a.high, b.high));
}
#define EMULATED_ONE(x, operation) by_halves(x, [&](auto a) { return operation(a); })
#define EMULATED_TWO(x, y, operation) by_halves(x, y, [](auto a, auto b) { return operation(a, b); })
#define EMULATED_SHIFT(x, n, operation) by_halves(x, [&](auto a) { return operation(a, n); })

inline __m512 loadu_ps(const float* p) { return joined(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
inline void storeu_ps(float* p, __m512 x) { std::memcpy(p, &x, sizeof x); }
inline __m512 maskz_loadu_ps(__mmask16 mask, const float* p) {
  float lanes[16] = {};
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) lanes[i] = p[i];
  }
  return loadu_ps(lanes);
}
inline void mask_storeu_ps(float* p, __mmask16 mask, __m512 x) {
  float lanes[16];
  storeu_ps(lanes, x);
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) p[i] = lanes[i];
  }
}
inline __m512i loadu_si512(const void* p) {
  __m512i x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline void storeu_si512(void* p, __m512i x) { std::memcpy(p, &x, sizeof x); }

inline __m512 set1_ps(float x) { return joined(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
inline __m512i set1_epi32(int x) { return joined(_mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
template <class... T>
__m512i setr_epi32(T... lanes) {
  const int32_t all[16] = {lanes...};
  return loadu_si512(all);
}

inline __m512 add_ps(__m512 x, __m512 y) { return EMULATED_TWO(x, y, _mm256_add_ps); }
inline __m512 sub_ps(__m512 x, __m512 y) { return EMULATED_TWO(x, y, _mm256_sub_ps); }
inline __m512 mul_ps(__m512 x, __m512 y) { return EMULATED_TWO(x, y, _mm256_mul_ps); }
inline __m512 div_ps(__m512 x, __m512 y) { return EMULATED_TWO(x, y, _mm256_div_ps); }
inline __m512 max_ps(__m512 x, __m512 y) { return EMULATED_TWO(x, y, _mm256_max_ps); }
inline __m512 fmadd_ps(__m512 x, __m512 y, __m512 z) {
  const Halves a = halves(x), b = halves(y), c = halves(z);
  return joined(_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high));
}
inline __m512i add_epi32(__m512i x, __m512i y) { return EMULATED_TWO(x, y, _mm256_add_epi32); }
inline __m512i and_si512(__m512i x, __m512i y) { return EMULATED_TWO(x, y, _mm256_and_si256); }
inline __m512i xor_si512(__m512i x, __m512i y) { return EMULATED_TWO(x, y, _mm256_xor_si256); }
inline __m512i shuffle_epi8(__m512i x, __m512i y) { return EMULATED_TWO(x, y, _mm256_shuffle_epi8); }
inline __m512i slli_epi32(__m512i x, int n) { return EMULATED_SHIFT(x, n, _mm256_slli_epi32); }
inline __m512i srli_epi32(__m512i x, int n) { return EMULATED_SHIFT(x, n, _mm256_srli_epi32); }
inline __m512i slli_epi16(__m512i x, int n) { return EMULATED_SHIFT(x, n, _mm256_slli_epi16); }
inline __m512i srai_epi16(__m512i x, int n) { return EMULATED_SHIFT(x, n, _mm256_srai_epi16); }
inline __m512i dpwssd_epi32(__m512i sum, __m512i x, __m512i y) {
  return add_epi32(sum, EMULATED_TWO(x, y, _mm256_madd_epi16));
}

inline __m512 cvtepi32_ps(__m512i x) { return EMULATED_ONE(x, _mm256_cvtepi32_ps); }
inline __m512i cvtps_epi32(__m512 x) { return EMULATED_ONE(x, _mm256_cvtps_epi32); }
inline __m512 cvtph_ps(__m256i x) {
  return joined(_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}
inline __m512i cvtepi8_epi32(__m128i x) {
  return joined(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(x, x)));
}
inline __m256i cvtepi32_epi16(__m512i x) {
  int32_t lanes[16];
  storeu_si512(lanes, x);
  int16_t low[16];
  for (int i = 0; i < 16; ++i) low[i] = static_cast<int16_t>(lanes[i]);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low));
}
inline __m512i castps_si512(__m512 x) { return loadu_si512(&x); }
inline __m512 castsi512_ps(__m512i x) { return loadu_ps(reinterpret_cast<const float*>(&x)); }
inline __m256 castps512_ps256(__m512 x) { return halves(x).low; }
inline __m256 extractf32x8_ps(__m512 x, int half) { return half ? halves(x).high : halves(x).low; }
inline __m512i broadcast_i32x4(__m128i x) {
  return joined(_mm256_broadcastsi128_si256(x), _mm256_broadcastsi128_si256(x));
}

inline __m512 permutex2var_ps(__m512 x, __m512i lanes, __m512 y) {
  float both[32], result[16];
  storeu_ps(both, x);
  storeu_ps(both + 16, y);
  int32_t index[16];
  storeu_si512(index, lanes);
  for (int i = 0; i < 16; ++i) result[i] = both[index[i] & 31];
  return loadu_ps(result);
}
inline __m512 mask_blend_ps(__mmask16 mask, __m512 no, __m512 yes) {
  float lanes[16];
  storeu_ps(lanes, no);
  mask_storeu_ps(lanes, mask, yes);
  return loadu_ps(lanes);
}
template <int predicate>
__mmask16 cmp_ps_mask(__m512 x, __m512 y) {
  const Halves a = halves(x), b = halves(y);
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, predicate));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, predicate));
  return static_cast<__mmask16>(low | high << 8);
}

#undef EMULATED_ONE
#undef EMULATED_TWO
#undef EMULATED_SHIFT

}  // namespace emulated

#undef _mm512_cmp_ps_mask
#undef _mm512_setr_epi32
#undef _mm512_extractf32x8_ps
#undef _mm512_slli_epi32
#undef _mm512_srli_epi32
#undef _mm512_slli_epi16
#undef _mm512_srai_epi16
#define _mm512_setzero_ps() emulated::set1_ps(0)
#define _mm512_cmp_ps_mask(x, y, predicate) emulated::cmp_ps_mask<predicate>(x, y)
#define _mm512_add_epi32 emulated::add_epi32
#define _mm512_add_ps emulated::add_ps
#define _mm512_and_si512 emulated::and_si512
#define _mm512_broadcast_i32x4 emulated::broadcast_i32x4
#define _mm512_castps512_ps256 emulated::castps512_ps256
#define _mm512_castps_si512 emulated::castps_si512
#define _mm512_castsi512_ps emulated::castsi512_ps
#define _mm512_cvtepi32_epi16 emulated::cvtepi32_epi16
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_cvtepi8_epi32 emulated::cvtepi8_epi32
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_cvtps_epi32 emulated::cvtps_epi32
#define _mm512_div_ps emulated::div_ps
#define _mm512_dpwssd_epi32 emulated::dpwssd_epi32
#define _mm512_extractf32x8_ps emulated::extractf32x8_ps
#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_loadu_ps emulated::loadu_ps
#define _mm512_loadu_si512 emulated::loadu_si512
#define _mm512_mask_blend_ps emulated::mask_blend_ps
#define _mm512_mask_storeu_ps emulated::mask_storeu_ps
#define _mm512_maskz_loadu_ps emulated::maskz_loadu_ps
#define _mm512_max_ps emulated::max_ps
#define _mm512_mul_ps emulated::mul_ps
#define _mm512_permutex2var_ps emulated::permutex2var_ps
#define _mm512_set1_epi32 emulated::set1_epi32
#define _mm512_set1_ps emulated::set1_ps
#define _mm512_setr_epi32 emulated::setr_epi32
#define _mm512_shuffle_epi8 emulated::shuffle_epi8
#define _mm512_slli_epi16 emulated::slli_epi16
#define _mm512_slli_epi32 emulated::slli_epi32
#define _mm512_srai_epi16 emulated::srai_epi16
#define _mm512_srli_epi32 emulated::srli_epi32
#define _mm512_storeu_ps emulated::storeu_ps
#define _mm512_storeu_si512 emulated::storeu_si512
#define _mm512_sub_ps emulated::sub_ps
#define _mm512_xor_si512 emulated::xor_si512
