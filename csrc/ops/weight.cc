#include "ops/weight.h"

#include <algorithm>
#include <cstring>

#include "ops/block_formats.h"
#include "runtime/refusal.h"
#include "simd/half.h"

namespace octavo {
namespace {

// The half that equals x, which came from a half.
uint16_t exact_half(float x) {
  const uint32_t u = float_bits(x), sign = (u >> 16) & 0x8000, exponent = (u >> 23) & 255, mantissa = u & 0x7fffff;
  if (exponent == 255) return static_cast<uint16_t>(sign | 0x7c00 | mantissa >> 13);
  if (exponent >= 113) return static_cast<uint16_t>(sign | (exponent - 112) << 10 | mantissa >> 13);
  if (exponent < 103) return static_cast<uint16_t>(sign);
  return static_cast<uint16_t>(sign | (mantissa | 0x800000) >> (126 - exponent));
}

PackedMatrix layout_of(const BlockFormat& format, int64_t num_features, int64_t num_columns) {
  PackedMatrix m{};
  m.kind = format.kind;
  m.scale_kind = format.scale_kind;
  m.has_minima = format.has_minima;
  m.group = format.group;
  m.num_features = num_features;
  m.num_columns = num_columns;
  m.padded_columns = (num_columns + kDepth - 1) / kDepth * kDepth;
  const int64_t scale_bytes = m.scale_kind == ScaleKind::kNone ? 0 : m.scale_kind == ScaleKind::kF16 ? 2 : 4;
  m.scales_offset = m.padded_columns * kPanel * element_bits(m.kind) / 8;
  m.minima_offset = m.scales_offset + m.num_groups() * kPanel * scale_bytes;
  const int64_t end = m.minima_offset + (m.has_minima ? m.num_groups() * kPanel * scale_bytes : 0);
  m.panel_bytes = (end + 63) / 64 * 64;
  if (format.values) {
    m.offset = -format.values[0];
    for (int i = 0; i < 16; ++i) m.values[i] = static_cast<uint8_t>(format.values[i] + m.offset);
  }
  return m;
}

// Codes of one feature, one byte each, to its lanes of the panel's pair rows.
void place_codes(PackKind kind, const uint8_t* codes, int64_t num_columns, int lane, uint8_t* panel) {
  uint32_t* words = reinterpret_cast<uint32_t*>(panel) + lane;  // 16 lanes of 32 bits: even code low, odd code high
  if (kind == PackKind::kNibble) {
    for (int64_t k = 0; k < num_columns; k += 8, codes += 8, words += 16) {
      const uint32_t even = codes[0] | codes[2] << 4 | codes[4] << 8 | codes[6] << 12;
      const uint32_t odd = codes[1] | codes[3] << 4 | codes[5] << 8 | codes[7] << 12;
      *words = even | odd << 16;
    }
  } else {
    for (int64_t k = 0; k < num_columns; k += 8, codes += 8, words += 32) {
      for (int half = 0; half < 2; ++half) {
        const uint8_t* c = codes + 2 * half;
        words[16 * half] = static_cast<uint32_t>(c[0]) | c[4] << 8 | c[1] << 16 | static_cast<uint32_t>(c[5]) << 24;
      }
    }
  }
}

void place_scales(ScaleKind kind, const float* scales, int64_t num_groups, int lane, uint8_t* target) {
  if (kind == ScaleKind::kF16) {
    uint16_t* out = reinterpret_cast<uint16_t*>(target) + lane;
    for (int64_t g = 0; g < num_groups; ++g) out[g * kPanel] = exact_half(scales[g]);
  } else {
    float* out = reinterpret_cast<float*>(target) + lane;
    for (int64_t g = 0; g < num_groups; ++g) out[g * kPanel] = scales[g];
  }
}

// Plain numbers of one feature; the padding beyond num_columns stays zero, as fresh pages are.
void place_numbers(const PackedMatrix& m, const uint8_t* row, int lane, uint8_t* panel) {
  for (int64_t k = 0; k < m.num_columns; ++k) {
    const int64_t pair = k / 2, parity = k % 2;
    if (m.kind == PackKind::kBf16) {
      std::memcpy(panel + ((pair * kPanel + lane) * 2 + parity) * 2, row + 2 * k, 2);
    } else if (m.kind == PackKind::kF16) {
      std::memcpy(panel + ((pair * 2 + parity) * kPanel + lane) * 2, row + 2 * k, 2);
    } else {
      std::memcpy(panel + ((pair * 2 + parity) * kPanel + lane) * 4, row + 4 * k, 4);
    }
  }
}

void pack_panel(const EncodedMatrix& source, const BlockFormat& format, const PackedMatrix& m, int64_t panel) {
  uint8_t* target = m.data + panel * m.panel_bytes;
  const int lanes = static_cast<int>(std::min<int64_t>(kPanel, m.num_features - panel * kPanel));
  std::vector<uint8_t> codes(static_cast<size_t>(m.num_columns));
  std::vector<float> scales(static_cast<size_t>(m.num_groups())), minima(scales.size());
  for (int lane = 0; lane < lanes; ++lane) {
    const uint8_t* row = source.data + (panel * kPanel + lane) * source.row_stride;
    if (!format.unpack) {
      place_numbers(m, row, lane, target);
      continue;
    }
    const int groups_per_block = format.elements / format.group;
    for (int64_t b = 0; b < m.num_columns / format.elements; ++b) {
      format.unpack(row + b * format.bytes, codes.data() + b * format.elements, scales.data() + b * groups_per_block,
                    minima.data() + b * groups_per_block);
    }
    place_codes(m.kind, codes.data(), m.num_columns, lane, target);
    place_scales(m.scale_kind, scales.data(), m.num_groups(), lane, target + m.scales_offset);
    if (m.has_minima) place_scales(m.scale_kind, minima.data(), m.num_groups(), lane, target + m.minima_offset);
  }
}

float number_at(const PackedMatrix& m, const uint8_t* panel, int64_t k, int lane) {
  const int64_t pair = k / 2, parity = k % 2;
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel);
  switch (m.kind) {
    case PackKind::kNibble: {
      const uint16_t word = halves[(k / 8 * kPanel + lane) * 2 + parity];
      return static_cast<float>(m.values[(word >> (k % 8 / 2 * 4)) & 15] - m.offset);
    }
    case PackKind::kByte: {
      const uint16_t word = halves[((k / 8 * 2 + k % 4 / 2) * kPanel + lane) * 2 + parity];
      return static_cast<float>(static_cast<int8_t>(word >> (k % 8 / 4 * 8)));
    }
    case PackKind::kBf16: return bf16_to_float(halves[(pair * kPanel + lane) * 2 + parity]);
    case PackKind::kF16: return half_to_float(halves[(pair * 2 + parity) * kPanel + lane]);
    case PackKind::kF32: return reinterpret_cast<const float*>(panel)[(pair * 2 + parity) * kPanel + lane];
  }
  return 0;
}

float scale_at(ScaleKind kind, const uint8_t* scales, int64_t index) {
  if (kind == ScaleKind::kF16) return half_to_float(reinterpret_cast<const uint16_t*>(scales)[index]);
  return reinterpret_cast<const float*>(scales)[index];
}

}  // namespace

Weight::Weight(const std::vector<EncodedMatrix>& matrices, ThreadPool& pool, PageArena& arena) {
  if (matrices.empty()) throw Refusal("a weight needs at least one matrix");
  num_columns_ = matrices.front().num_columns;
  for (const EncodedMatrix& source : matrices) {
    const BlockFormat& format = block_format(source.type);
    if (source.num_columns != num_columns_) {
      throw Refusal("stacked matrices must have equal columns, not " + std::to_string(num_columns_) +
                                  " and " + std::to_string(source.num_columns));
    }
    if (num_columns_ < 1 || source.num_rows < 1 || num_columns_ % format.elements ||
        source.row_bytes != num_columns_ / format.elements * format.bytes) {
      throw Refusal("a matrix of type " + source.type + " cannot be [" + std::to_string(source.num_rows) +
                                  ", " + std::to_string(num_columns_) + "] in rows of " +
                    std::to_string(source.row_bytes) + " bytes");
    }
    PackedMatrix m = layout_of(format, source.num_rows, num_columns_);
    memory_.push_back(arena.allocate(static_cast<size_t>(m.num_panels() * m.panel_bytes)));
    m.data = memory_.back().get();
    matrices_.push_back(m);
    num_features_ += source.num_rows;
    constexpr int64_t kPanelsPerItem = 8;
    pool.for_each((m.num_panels() + kPanelsPerItem - 1) / kPanelsPerItem, [&](int64_t item) {
      const int64_t end = std::min((item + 1) * kPanelsPerItem, m.num_panels());
      for (int64_t panel = item * kPanelsPerItem; panel < end; ++panel) pack_panel(source, format, m, panel);
    });
  }
}

int64_t Weight::num_bytes() const {
  int64_t bytes = 0;
  for (const PackedMatrix& m : matrices_) bytes += m.num_panels() * m.panel_bytes;
  return bytes;
}

void Weight::dequantize_row(int64_t feature, float* out) const {
  auto m = matrices_.begin();
  while (feature >= m->num_features) feature -= (m++)->num_features;
  const uint8_t* panel = m->panel(feature / kPanel);
  const int lane = static_cast<int>(feature % kPanel);
  for (int64_t k = 0; k < m->num_columns; ++k) {
    float value = number_at(*m, panel, k, lane);
    const int64_t index = k / m->group * kPanel + lane;
    if (m->scale_kind != ScaleKind::kNone) value *= scale_at(m->scale_kind, panel + m->scales_offset, index);
    if (m->has_minima) value += scale_at(m->scale_kind, panel + m->minima_offset, index);
    out[k] = value;
  }
}

}  // namespace octavo
