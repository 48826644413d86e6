// What one instruction set offers: kernels over ranges of rows, panels or items, free of threads and of Python.
#pragma once

#include <cstdint>

#include "kernels/kv_layout.h"
#include "kernels/packed_matrix.h"
#include "runtime/cpu_features.h"

namespace octavo {

// Whole numbers q [rows, columns] in tiles, cut into bytes, q = 256 high + low, as the tile unit loads them:
// [rows / M][columns / 32][M][64], a row being 32 high bytes (signed), then 32 low ones. Of each eight columns the order
// is that of kTileOrder. Zero rows fill the last tile.
struct TiledRows {
  uint8_t* data;  // null without tiles
  int rows_per_tile;
  int64_t padded_columns;

  int64_t step() const { return rows_per_tile * 64; }  // bytes from 32 columns to the next 32
  uint8_t* row(int64_t r) const {
    if (!data) return nullptr;
    return data + r / rows_per_tile * rows_per_tile * padded_columns * 2 + r % rows_per_tile * 64;
  }
};
// The places of eight columns: where a packed matrix has their codes after a mask.
constexpr int kTileOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};

// The whole numbers of a group, summed.
struct GroupSum {
  int32_t whole;
  float scaled;  // times their step
};

// One row of activations as whole numbers.
struct WholeRow {
  int16_t* numbers;           // [padded_columns], zero-padded
  float* steps;               // [padded_columns / 32]
  GroupSum *sums, *sums16;    // over groups of 32 and of 16
};

// Activations [num_rows, padded_columns] as matmul wants them: numbers for matrices of numbers, whole numbers for codes.
struct Activations {
  float* values;  // zero-padded
  WholeRow whole;  // the first row; the others follow, each array with rows of its own length
  TiledRows tiles;
  int64_t num_rows, num_columns, padded_columns;

  int64_t num_steps() const { return padded_columns / 32; }
  WholeRow whole_row(int64_t r) const {
    const int64_t n = num_steps();
    return {whole.numbers + r * padded_columns, whole.steps + r * n, whole.sums + r * n, whole.sums16 + r * 2 * n};
  }
};

// Where the rows of a product go, and what is added to them.
struct MatmulOutput {
  float* out;  // column 0 is feature 0 of the matrix
  int64_t stride;
  const float* bias;  // [num_features] or null
};

// The KV cache of one layer. See kernels/kv_layout.h for what lies inside a block.
struct KVLayer {
  const uint8_t* blocks;
  int64_t block_bytes;
  KVLayout layout;
};

// Query rows that one item of attention handles at most.
constexpr int kMaxQueryRows = 16;
// Positions per chunk, aligned to absolute positions: what softmax sees at once. It defines the result.
constexpr int kChunk = 256;

// Attention of `num_kv_heads` consecutive KV heads × `num_queries` consecutive tokens of one request × `num_heads` query
// heads that share a KV head, together at most kMaxQueryRows rows, over a range of chunks.
struct AttentionItem {
  const int32_t* block_table;
  int64_t first_position;  // of query 0; query i sits at first_position + i
  int num_queries, num_heads, first_kv_head, num_kv_heads;
  int64_t sliding_window;  // positions a query sees, its own included; 0: all
  float scale;
  const float* q;  // query i, head h at q + i * q_stride + h * q_head_stride; num_heads to a KV head
  int64_t q_stride, q_head_stride;
  int64_t first_chunk, end_chunk;
  float* partials;  // null: write `out`; else [chunk][row][padded head size + 2]: sums, largest score, weight
  float* out;       // query i, head h at out + i * out_stride + h * head_dim
  int64_t out_stride;

  int rows_per_kv_head() const { return num_queries * num_heads; }
  int num_rows() const { return num_kv_heads * rows_per_kv_head(); }
  int query_of(int row) const { return row % rows_per_kv_head() / num_heads; }
  int head_of(int row) const { return row / rows_per_kv_head() * num_heads + row % num_heads; }
};

struct KernelTable {
  // Rows per tile of Activations for a matmul of so many rows; 0: by fma, no tiles are needed.
  int (*tile_rows)(int64_t num_rows);

  // activations.cc: x [n] to a row of whole numbers, and to one of tiles unless `tile_row` is null.
  void (*round_to_whole)(const float* x, int64_t n, int64_t padded, const WholeRow& row, uint8_t* tile_row,
                         int64_t tile_step);
  // matmul.cc
  void (*matmul)(const PackedMatrix&, int64_t first_panel, int64_t end_panel, const Activations&, const MatmulOutput&);
  // elementwise.cc
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int64_t n, float* out);
  void (*add)(const float* x, float* residual, int64_t n);
  void (*silu_and_mul)(const float* gate, const float* up, int64_t n, float* out);
  void (*rotate)(float* x, const float* cosines, const float* sines, int64_t half);
  // attention.cc
  void (*attention)(const KVLayer&, const AttentionItem&);
  void (*merge_partials)(const KVLayer&, const AttentionItem&);  // of an item with partials, to its `out`
  // softmax.cc
  float (*max_value)(const float* x, int64_t n);
  double (*sum_exp)(const float* x, int64_t n, float shift, float* terms);
  // peak.cc
  double (*burn)(int64_t steps);  // floating-point operations that it did
};

// The kernels of an instruction set that this machine has.
const KernelTable& kernel_table(Isa isa);

namespace isa_scalar {
extern const KernelTable kKernels;
}
namespace isa_neon {
extern const KernelTable kKernels;
}
namespace isa_avx2 {
extern const KernelTable kKernels;
}
namespace isa_avx512 {
extern const KernelTable kKernels;
}
namespace isa_amx {
extern const KernelTable kKernels;
}

}  // namespace octavo
