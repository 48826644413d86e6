// What the bytes of GGUF's quantised blocks mean: codes, and scale and minimum per group. The layouts are drawn in
// octavo/backends/dequantize.py; the tests compare the two element by element.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/packed_matrix.h"

namespace octavo {

struct BlockFormat {
  const char* label;
  int elements, bytes;  // of an encoded block
  PackKind kind;
  ScaleKind scale_kind;
  bool has_minima;
  int group;
  const int8_t* values;  // what the 16 nibble codes stand for; null for other kinds
  // Codes of one block (nibbles as they are, bytes signed), scales and minima of its groups; null for plain numbers.
  void (*unpack)(const uint8_t* block, uint8_t* codes, float* scales, float* minima);
};

// The format of that label, such as "Q4_K". Throws Refusal for a label that is not known.
const BlockFormat& block_format(const std::string& label);

}  // namespace octavo
