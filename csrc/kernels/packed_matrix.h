// How a weight matrix lies in memory: one packing that every instruction set reads.
//
// A matrix [N features, K] is cut into panels of 16 features, one feature per vector lane. A panel holds, contiguously,
//
//   codes    K / 2 "pair rows" in ascending order: pair row p is [16 features][2], the elements k = 2 p and 2 p + 1.
//            kNibble  64 bytes hold 4 pair rows: the 16-bit lane (feature, parity) has pair row r in bits 4 r … 4 r + 3.
//            kByte    64 bytes hold 2 pair rows: the 16-bit lane has pair row r in its byte r, signed.
//            kBf16    64 bytes are 1 pair row: what a tile of the B operand wants.
//            kF16     64 bytes are 1 pair row as [2][16 features].
//            kF32     128 bytes are 1 pair row as [2][16 features].
//   scales   [K / group][16 features], half or float
//   minima   the same, if the type has them
//
// An element is  scale * value(code) + minimum,  where value() looks a nibble up in a table and is the byte itself
// otherwise. K is padded with zeros to a multiple of 32, N with zero features to a multiple of 16; the padding is part
// of the definition (it adds exact zeros).
//
// The product of activations a and such a matrix is defined in float, rounded to nearest even, denormals flushed; a is
// rounded to bfloat16 first, unless the matrix is kF16 or kF32. Per group of `group` elements, groups in ascending order:
//
//   even = odd = 0
//   for each pair:  even = fma(a[2p], value[2p], even);  odd = fma(a[2p+1], value[2p+1], odd)
//   acc = fma(scale, even + odd, acc)              (without scales: acc = acc + (even + odd))
//
// Minima meet the sum of the group's activations. Both are cut into two bfloat16, s = s_high + s_low (to within 2^-17)
// and m = m_high + m_low (exact for a half), so that this too is a product of bfloat16; per run of group / 4 groups:
//
//   even = odd = 0
//   for each group:  even = fma(s_high, m_high, even);  odd = fma(s_low, m_high, odd)
//                    even = fma(s_high, m_low, even);   odd = fma(s_low, m_low, odd)
//   minima = minima + (even + odd)
//
// and the result is acc + minima. Sums are the 16-lane tree of simd/f32x16.h over 16 elements, or over the lane-wise sum
// of two such runs for 32; s_high is s rounded to nearest, m_high is m cut off, the low parts are what is left, rounded.
#pragma once

#include <cstdint>

namespace octavo {

enum class PackKind : int { kNibble, kByte, kBf16, kF16, kF32 };
enum class ScaleKind : int { kNone, kF16, kF32 };

constexpr int kPanel = 16;  // features per panel
constexpr int kDepth = 32;  // K is padded to a multiple of this
constexpr int sum_run(int group) { return group / 4; }  // groups per run of minima: four columns each fill a tile

struct PackedMatrix {
  PackKind kind;
  ScaleKind scale_kind;
  bool has_minima;
  int group;  // elements of K per scale: 32 or 16
  int64_t num_features, num_columns, padded_columns;
  int64_t scales_offset, minima_offset, panel_bytes;  // within a panel, and of one
  uint8_t* data;
  float values[16];          // of nibbles
  uint16_t values_bf16[32];  // the same twice: a 16-bit look-up reads five bits of its index

  int64_t num_panels() const { return (num_features + kPanel - 1) / kPanel; }
  int64_t num_groups() const { return padded_columns / group; }
  int64_t num_sum_runs() const { return (num_groups() + sum_run(group) - 1) / sum_run(group); }
  const uint8_t* panel(int64_t p) const { return data + p * panel_bytes; }
  bool is_exact() const { return kind == PackKind::kF16 || kind == PackKind::kF32; }  // activations stay float
};

// Bits of one code.
constexpr int code_bits(PackKind kind) {
  switch (kind) {
    case PackKind::kNibble: return 4;
    case PackKind::kByte: return 8;
    case PackKind::kBf16: return 16;
    case PackKind::kF16: return 16;
    case PackKind::kF32: return 32;
  }
  return 0;
}

}  // namespace octavo
