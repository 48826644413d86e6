// How a weight matrix lies in memory: one packing that every instruction set reads.
//
// A matrix [N features, K] is cut into panels of 16 features, one feature per vector lane. A panel holds, contiguously,
//
//   elements K / 2 "pair rows" in ascending order: pair row p is [16 features][2], the elements k = 2 p and 2 p + 1.
//            kNibble  64 bytes hold 4 pair rows: the 16-bit lane (feature, parity) has pair row r in bits 4 r … 4 r + 3.
//            kByte    128 bytes hold 4 pair rows: 16-bit lanes (feature, parity) of pair row 0 in the low and 2 in the
//                     high byte, then of pair rows 1 and 3. Signed.
//            kBf16    64 bytes are 1 pair row.
//            kF16     64 bytes are 1 pair row as [2][16 features].
//            kF32     128 bytes are 1 pair row as [2][16 features].
//   scales   [K / group][16 features], half or float
//   minima   the same, if the type has them
//
// Nibbles and bytes are codes: an element is  scale * (values[code] - offset) + minimum,  a byte stands for itself. The
// others are the elements. K is padded with zeros to a multiple of 32, N with zero features to a multiple of 16; the
// padding is part of the definition (it adds exact zeros).
//
// The product of activations a and such a matrix is defined as follows, in float unless it says otherwise, rounded to
// nearest even, denormals flushed.
//
// Of numbers, per group of 32 elements in ascending order:
//
//   even = odd = 0
//   for each pair:  even = fma(a[2p], w[2p], even);  odd = fma(a[2p+1], w[2p+1], odd)
//   acc = acc + (even + odd)
//
// Of codes: the activations become whole numbers of 16 bits first, a[k] ≈ step * q[k], with one step per 32 of them,
// the largest magnitude ÷ 32767 (kernels/activations.cc). Per group of `group` elements in ascending order:
//
//   t   = Σ q[k] * (values[code[k]] - offset)                          in integers: exact, whatever the order
//   acc = fma(scale, step * float(t), acc)
//   acc = fma(minimum, step * float(Σ q[k]), acc)                      (with minima)
#pragma once

#include <cstdint>

namespace octavo {

enum class PackKind : int { kNibble, kByte, kBf16, kF16, kF32 };
enum class ScaleKind : int { kNone, kF16, kF32 };

constexpr int kPanel = 16;  // features per panel
constexpr int kDepth = 32;  // K is padded to a multiple of this; also the activations that share a step

struct PackedMatrix {
  PackKind kind;
  ScaleKind scale_kind;
  bool has_minima;
  int group;  // elements of K per scale: 32 or 16
  int64_t num_features, num_columns, padded_columns;
  int64_t scales_offset, minima_offset, panel_bytes;  // within a panel, and of one
  uint8_t* data;
  uint8_t values[16];  // of nibbles; values[0] is 0
  int offset;          // what they are above their true values

  int64_t num_panels() const { return (num_features + kPanel - 1) / kPanel; }
  int64_t num_groups() const { return padded_columns / group; }
  const uint8_t* panel(int64_t p) const { return data + p * panel_bytes; }
  bool has_codes() const { return kind == PackKind::kNibble || kind == PackKind::kByte; }
};

// Bits of one element.
constexpr int element_bits(PackKind kind) {
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
