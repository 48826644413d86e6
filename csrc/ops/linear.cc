#include "ops/linear.h"

#include <algorithm>
#include <string>

#include "runtime/refusal.h"

namespace octavo {
namespace {

// How the panels of a weight are shared out: in pairs, which kernels like, as evenly as whole pairs allow.
//
// Threads claim items in turns, so items that are claimed in turns lie apart, a thread's share of the memory from each
// other: a thread mostly walks through one range of it, and what it, or the processor, asks for ahead is its own.
struct Shares {
  int64_t num_panels, num_items, num_walks;

  // Enough items to balance the threads, each big enough to be worth claiming.
  Shares(int64_t panels, int64_t panel_bytes, int64_t num_rows, int num_threads) : num_panels(panels) {
    const int64_t smallest = std::max<int64_t>(1, 16384 / (panel_bytes * std::max<int64_t>(1, num_rows / 4)));
    num_items = std::clamp<int64_t>(std::min(panels / smallest, num_pairs()), 1, num_threads * 8);
    num_walks = num_items >= num_threads ? num_threads : 1;
    num_items -= num_items % num_walks;
  }

  int64_t num_pairs() const { return (num_panels + 1) / 2; }
  int64_t place(int64_t claim) const { return claim % num_walks * (num_items / num_walks) + claim / num_walks; }
  int64_t begin(int64_t item) const { return std::min(num_panels, item * num_pairs() / num_items * 2); }
};

}  // namespace

LeftOperand allocate_left(Runtime& runtime, int64_t num_rows, const Weight& weight) {
  bool numbers = false, codes = false;  // of which are the matrices?
  for (const PackedMatrix& m : weight.matrices()) (m.has_codes() ? codes : numbers) = true;
  const int tile_rows = codes ? runtime.kernels.tile_rows(num_rows) : 0;
  LeftOperand left{};
  left.num_rows = num_rows;
  left.num_columns = weight.num_columns();
  left.padded_columns = weight.padded_columns();
  left.padded_rows = tile_rows ? (num_rows + tile_rows - 1) / tile_rows * tile_rows : num_rows;
  const size_t elements = static_cast<size_t>(left.padded_rows * left.padded_columns);
  if (numbers) left.values = runtime.values.require(elements);
  if (codes) {
    left.whole = {runtime.whole_numbers.require(elements), runtime.steps.require(elements / 32),
                  runtime.sums.require(elements / 32), runtime.sums16.require(elements / 16)};
    left.tiles = {tile_rows ? runtime.tiles.require(2 * elements) : nullptr, tile_rows, left.padded_columns};
  }
  return left;
}

void LeftOperand::fill(const KernelTable& kernels, int64_t row, const float* x) const {
  const int64_t columns = row < num_rows ? num_columns : 0;
  if (values) {
    float* target = values + row * padded_columns;
    std::copy(x, x + columns, target);
    std::fill(target + columns, target + padded_columns, 0.0f);
  }
  if (whole.numbers) {
    kernels.round_to_whole(x, columns, padded_columns, whole_row(row), tiles.row(row), tiles.step());
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
  runtime.pool.for_each(shares.num_items, [&](int64_t claim) {
    const int64_t item = shares.place(claim);
    int64_t matrix_begin = 0, first_feature = 0;
    for (const PackedMatrix& m : weight.matrices()) {
      const int64_t matrix_end = matrix_begin + m.num_panels();
      const int64_t first = std::max(shares.begin(item), matrix_begin), end = std::min(shares.begin(item + 1), matrix_end);
      if (first < end) {
        const MatmulOutput output{out.data + first_feature, out.stride, bias ? bias + first_feature : nullptr};
        runtime.kernels.matmul(m, first - matrix_begin, end - matrix_begin, left, output);
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
