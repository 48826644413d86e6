// The tile unit (AMX): configuration, and one 16 × 16 product per group of a packed matrix.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/packed_matrix.h"
#include "simd/f32x16.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

constexpr int kTileRows = 16;   // of the left operand and of the result
constexpr int kTileBytes = 64;  // per row

// Tiles 4 and 5 are the left operand [rows, depth] and the right one [depth / 2, 16 pairs] (the processor renames them, so
// one of each is enough), all others results [rows, 16 floats].
// Loaded at the start of every kernel call: another library may have used the tiles of this thread in between.
inline void configure_tiles(int rows, int depth) {
  struct alignas(64) Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } config = {};
  config.palette = 1;
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = static_cast<uint16_t>(t == 4 ? depth * 2 : kTileBytes);
    config.rows[t] = static_cast<uint8_t>(t == 5 ? depth / 2 : rows);
  }
  // GCC 12 does not know that the instruction reads the struct, and would drop the stores above.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

// Codes of one group of 32 or 16 columns → `depth / 2` rows of 16 pairs of bfloat16 at `b`, 64 bytes each.
template <PackKind kind>
inline void widen_group(const PackedMatrix& w, const uint8_t* codes, int depth, uint8_t* b);

template <>
inline void widen_group<PackKind::kNibble>(const PackedMatrix& w, const uint8_t* codes, int depth, uint8_t* b) {
  const __m512i table = _mm512_loadu_si512(w.values_bf16);
  for (int word = 0; word < depth / 8; ++word, codes += 64, b += 4 * kTileBytes) {
    const __m512i x = _mm512_loadu_si512(codes);
    _mm512_store_si512(b, _mm512_permutexvar_epi16(x, table));
    _mm512_store_si512(b + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(x, 4), table));
    _mm512_store_si512(b + 128, _mm512_permutexvar_epi16(_mm512_srli_epi16(x, 8), table));
    _mm512_store_si512(b + 192, _mm512_permutexvar_epi16(_mm512_srli_epi16(x, 12), table));
  }
}

inline void store_pairs(uint8_t* b, F32x16 even, F32x16 odd) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even.v), 16);
  _mm512_store_si512(b, _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_castps_si512(odd.v)));
}

template <>
inline void widen_group<PackKind::kByte>(const PackedMatrix&, const uint8_t* codes, int depth, uint8_t* b) {
  for (int word = 0; word < depth / 4; ++word, codes += 64, b += 2 * kTileBytes) {
    const U32x16 x = load_u32(codes);
    store_pairs(b, signed_byte<0>(x), signed_byte<2>(x));
    store_pairs(b + 64, signed_byte<1>(x), signed_byte<3>(x));
  }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
