#include "ops/linear.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "runtime/refusal.h"

namespace octavo {
namespace {

// The left operand in the form that the matrix wants, in the runtime's scratch memory.
Activations prepare(Runtime& runtime, Rows<const float> x, const Weight& weight, bool exact) {
  const int64_t padded = weight.padded_columns();
  Activations a{};
  a.num_rows = x.num_rows;
  a.num_columns = x.num_columns;
  a.padded_columns = padded;
  if (exact) {
    float* values = runtime.exact_values.require(static_cast<size_t>(x.num_rows * padded));
    for_each_row(runtime, x.num_rows, padded, [&](int64_t row) {
      std::memcpy(values + row * padded, x.row(row), sizeof(float) * static_cast<size_t>(x.num_columns));
      std::fill(values + row * padded + x.num_columns, values + (row + 1) * padded, 0.0f);
    });
    a.values = values;
    return a;
  }
  bool sums32 = false, sums16 = false;
  for (const PackedMatrix& m : weight.matrices()) (m.group == 32 ? sums32 : sums16) |= m.has_minima;
  const int tile_rows = runtime.kernels.tile_rows(x.num_rows);
  const int64_t rows = tile_rows ? (x.num_rows + tile_rows - 1) / tile_rows * tile_rows : x.num_rows;
  const auto floats = [&](Scratch<float>& scratch, int64_t columns) {
    return scratch.require(static_cast<size_t>(rows * columns));
  };
  const auto tiles = [&](Scratch<uint16_t>& scratch, int64_t columns) {
    return TiledRows{tile_rows ? scratch.require(static_cast<size_t>(rows * columns)) : nullptr, tile_rows, columns};
  };
  const int64_t groups = a.padded_groups(32), groups16 = a.padded_groups(16);
  float* values = floats(runtime.values, padded);
  a.values = values;
  a.tiles = tiles(runtime.tiles, padded);
  if (sums32) a.sums = {floats(runtime.sums, groups * 2), tiles(runtime.sum_tiles, groups * 4)};
  if (sums16) a.sums16 = {floats(runtime.sums16, groups16 * 2), tiles(runtime.sum16_tiles, groups16 * 4)};
  for_each_row(runtime, rows, padded, [&](int64_t row) {
    // Rows beyond the last one fill the last tile; they are zero.
    const int64_t columns = row < x.num_rows ? x.num_columns : 0;
    float* own = values + row * padded;
    runtime.kernels.round_row(columns ? x.row(row) : nullptr, columns, padded, own, a.tiles.row(row), a.tiles.step());
    const auto sum = [&](const GroupSums& sums, int group, int64_t count) {
      runtime.kernels.sum_groups(own, padded, group, count, sums.pairs + row * count * 2, sums.tiles.row(row),
                                 sums.tiles.step());
    };
    if (sums32) sum(a.sums, 32, groups);
    if (sums16) sum(a.sums16, 16, groups16);
  });
  return a;
}

// Panels per item: enough items to balance the threads, each big enough to be worth claiming.
int64_t panels_per_item(const PackedMatrix& m, int64_t num_rows, int num_threads) {
  const int64_t per_thread = (m.num_panels() + num_threads * 8 - 1) / (num_threads * 8);
  const int64_t smallest = std::max<int64_t>(1, 16384 / (m.panel_bytes * std::max<int64_t>(1, num_rows / 4)));
  return std::max(per_thread, smallest);
}

}  // namespace

void linear(Runtime& runtime, Rows<const float> x, const Weight& weight, const float* bias, Rows<float> out) {
  Activations rounded{}, exact{};
  for (const PackedMatrix& m : weight.matrices()) {
    Activations& a = m.is_exact() ? exact : rounded;
    if (!a.values) a = prepare(runtime, x, weight, m.is_exact());
  }
  int64_t first_feature = 0;
  for (const PackedMatrix& m : weight.matrices()) {
    const Activations& a = m.is_exact() ? exact : rounded;
    const MatmulOutput output{out.data + first_feature, out.stride, bias ? bias + first_feature : nullptr};
    const int64_t step = panels_per_item(m, x.num_rows, runtime.pool.num_threads());
    runtime.pool.for_each((m.num_panels() + step - 1) / step, [&](int64_t item) {
      runtime.kernels.matmul(m, item * step, std::min((item + 1) * step, m.num_panels()), a, output);
    });
    first_feature += m.num_features;
  }
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
