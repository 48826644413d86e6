#include "ops/linear.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "runtime/refusal.h"

namespace octavo {
namespace {

// What the matrices of a weight want of the left operand.
struct Wants {
  bool exact = false, rounded = false, sums32 = false, sums16 = false;

  explicit Wants(const Weight& weight) {
    for (const PackedMatrix& m : weight.matrices()) {
      (m.is_exact() ? exact : rounded) = true;
      if (m.has_minima) (m.group == 32 ? sums32 : sums16) = true;
    }
  }
};

// How the panels of a weight are shared out: in pairs, which kernels like, as evenly as whole pairs allow.
struct Shares {
  int64_t num_panels, num_items;

  // Enough items to balance the threads, each big enough to be worth claiming.
  Shares(int64_t panels, int64_t panel_bytes, int64_t num_rows, int num_threads) : num_panels(panels) {
    const int64_t smallest = std::max<int64_t>(1, 16384 / (panel_bytes * std::max<int64_t>(1, num_rows / 4)));
    num_items = std::clamp<int64_t>(std::min(panels / smallest, num_pairs()), 1, num_threads * 8);
  }

  int64_t num_pairs() const { return (num_panels + 1) / 2; }
  int64_t begin(int64_t item) const { return std::min(num_panels, item * num_pairs() / num_items * 2); }
};

}  // namespace

LeftOperand allocate_left(Runtime& runtime, int64_t num_rows, const Weight& weight) {
  const Wants wants(weight);
  const int64_t padded = weight.padded_columns();
  const int tile_rows = wants.rounded ? runtime.kernels.tile_rows(num_rows) : 0;
  LeftOperand left{};
  left.padded_rows = tile_rows ? (num_rows + tile_rows - 1) / tile_rows * tile_rows : num_rows;
  const auto floats = [&](Scratch<float>& scratch, int64_t columns) {
    return scratch.require(static_cast<size_t>(left.padded_rows * columns));
  };
  const auto tiles = [&](Scratch<uint16_t>& scratch, int64_t columns) {
    const size_t count = static_cast<size_t>(left.padded_rows * columns);
    return TiledRows{tile_rows ? scratch.require(count) : nullptr, tile_rows, columns};
  };
  for (Activations* a : {&left.rounded, &left.exact}) {
    a->num_rows = num_rows;
    a->num_columns = weight.num_columns();
    a->padded_columns = padded;
  }
  if (wants.exact) left.exact.values = floats(runtime.exact_values, padded);
  if (wants.rounded) {
    left.rounded.values = floats(runtime.values, padded);
    left.rounded.tiles = tiles(runtime.tiles, padded);
  }
  const int64_t groups = left.rounded.padded_groups(32), groups16 = left.rounded.padded_groups(16);
  if (wants.sums32) left.rounded.sums = {floats(runtime.sums, groups * 2), tiles(runtime.sum_tiles, groups * 4)};
  if (wants.sums16) left.rounded.sums16 = {floats(runtime.sums16, groups16 * 2), tiles(runtime.sum16_tiles, groups16 * 4)};
  return left;
}

void LeftOperand::fill(const KernelTable& kernels, int64_t row, const float* x) const {
  const int64_t padded = rounded.padded_columns, columns = row < rounded.num_rows ? rounded.num_columns : 0;
  if (exact.values && columns) {
    float* values = exact.values + row * padded;
    std::memcpy(values, x, sizeof(float) * static_cast<size_t>(columns));
    std::fill(values + columns, values + padded, 0.0f);
  }
  if (!rounded.values) return;
  float* values = rounded.values + row * padded;
  kernels.round_row(x, columns, padded, values, rounded.tiles.row(row), rounded.tiles.step());
  for (int group : {32, 16}) {
    const GroupSums& sums = group == 32 ? rounded.sums : rounded.sums16;
    const int64_t groups = rounded.padded_groups(group);
    if (!sums.pairs) continue;
    kernels.sum_groups(values, padded, group, groups, sums.pairs + row * groups * 2, sums.tiles.row(row),
                       sums.tiles.step());
  }
}

void multiply(Runtime& runtime, const LeftOperand& left, const Weight& weight, const float* bias, Rows<float> out) {
  // The panels of all matrices form one list, so that the threads meet once per weight.
  int64_t num_panels = 0, num_bytes = 0;
  for (const PackedMatrix& m : weight.matrices()) {
    num_panels += m.num_panels();
    num_bytes += m.num_panels() * m.panel_bytes;
  }
  const Shares shares(num_panels, num_bytes / num_panels, out.num_rows, runtime.pool.num_threads());
  runtime.pool.for_each(shares.num_items, [&](int64_t item) {
    int64_t matrix_begin = 0, first_feature = 0;
    for (const PackedMatrix& m : weight.matrices()) {
      const int64_t matrix_end = matrix_begin + m.num_panels();
      const int64_t first = std::max(shares.begin(item), matrix_begin), end = std::min(shares.begin(item + 1), matrix_end);
      if (first < end) {
        const MatmulOutput output{out.data + first_feature, out.stride, bias ? bias + first_feature : nullptr};
        const Activations& a = m.is_exact() ? left.exact : left.rounded;
        runtime.kernels.matmul(m, first - matrix_begin, end - matrix_begin, a, output);
      }
      matrix_begin = matrix_end;
      first_feature += m.num_features;
    }
  });
}

void linear(Runtime& runtime, Rows<const float> x, const Weight& weight, const float* bias, Rows<float> out) {
  const LeftOperand left = allocate_left(runtime, x.num_rows, weight);
  for_each_row(runtime, left.padded_rows, weight.padded_columns(), [&](int64_t row) {
    left.fill(runtime.kernels, row, row < x.num_rows ? x.row(row) : nullptr);
  });
  multiply(runtime, left, weight, bias, out);
}

void embedding(Runtime& runtime, const Weight& weight, const int32_t* ids, Rows<float> out) {
  for (int64_t row = 0; row < out.num_rows; ++row) {
    if (ids[row] < 0 || ids[row] >= weight.num_features()) {
      throw Refusal("token id " + std::to_string(ids[row]) + " is not one of the " +
                                  std::to_string(weight.num_features()) + " of the embedding");
    }
  }
  for_each_row(runtime, out.num_rows, out.num_columns * 8, [&](int64_t row) { weight.dequantize_row(ids[row], out.row(row)); });
}

void rms_norm(Runtime& runtime, Heads<const float> x, const float* weight, float epsilon, float* out) {
  for_each_row(runtime, x.num_rows, x.num_heads * x.head_dim, [&](int64_t row) {
    for (int64_t h = 0; h < x.num_heads; ++h) {
      runtime.kernels.rms_norm(x.head(row, h), weight, epsilon, x.head_dim, out + (row * x.num_heads + h) * x.head_dim);
    }
  });
}

void add_rms_norm(Runtime& runtime, Rows<const float> x, Rows<float> residual, const float* weight, float epsilon,
                  Rows<float> out) {
  for_each_row(runtime, x.num_rows, x.num_columns, [&](int64_t row) {
    runtime.kernels.add(x.row(row), residual.row(row), x.num_columns);
    runtime.kernels.rms_norm(residual.row(row), weight, epsilon, x.num_columns, out.row(row));
  });
}

void act_and_mul(Runtime& runtime, Rows<const float> x, Rows<float> out) {
  for_each_row(runtime, x.num_rows, x.num_columns * 4, [&](int64_t row) {
    runtime.kernels.silu_and_mul(x.row(row), x.row(row) + out.num_columns, out.num_columns, out.row(row));
  });
}

void rotary_embedding(Runtime& runtime, Heads<float> x, const int32_t* positions, Rows<const float> cos_sin) {
  for (int64_t row = 0; row < x.num_rows; ++row) {
    if (positions[row] < 0 || positions[row] >= cos_sin.num_rows) {
      throw Refusal("position " + std::to_string(positions[row]) + " is not one of the " +
                                  std::to_string(cos_sin.num_rows) + " of the rotary table");
    }
  }
  const int64_t half = cos_sin.num_columns / 2;
  for_each_row(runtime, x.num_rows, x.num_heads * x.head_dim, [&](int64_t row) {
    const float* cosines = cos_sin.row(positions[row]);
    for (int64_t h = 0; h < x.num_heads; ++h) runtime.kernels.rotate(x.head(row, h), cosines, cosines + half, half);
  });
}

}  // namespace octavo
