// What one instruction set offers: kernels over ranges of rows, panels or items, free of threads and of Python.
#pragma once

#include <cstdint>

#include "kernels/kv_layout.h"
#include "kernels/packed_matrix.h"
#include "runtime/cpu_features.h"

namespace octavo {

// Rows of bfloat16 [rows, columns] in tiles, as the tile unit loads them: [rows / M][columns / 32][M][32], for tiles of M
// rows. Zero rows fill the last tile, zero columns the last 32.
struct TiledRows {
  uint16_t* data;  // null without tiles
  int rows_per_tile;
  int64_t padded_columns;

  int64_t step() const { return rows_per_tile * 32; }  // from 32 columns to the next 32
  uint16_t* row(int64_t r) const {
    if (!data) return nullptr;
    return data + r / rows_per_tile * rows_per_tile * padded_columns + r % rows_per_tile * 32;
  }
};

// Sums over groups of activations, cut into two bfloat16 each; groups are padded to whole tiles with zeros.
struct GroupSums {
  float* pairs;     // [rows][groups][2]: high, low
  TiledRows tiles;  // [rows][groups * 4]: high, low, high, low
};

// Activations [num_rows, padded_columns] as matmul wants them.
struct Activations {
  float* values;           // rounded to bfloat16 (or exact, for kF16 and kF32); columns zero-padded
  TiledRows tiles;         // the same
  GroupSums sums, sums16;  // over groups of 32 and of 16
  int64_t num_rows, num_columns, padded_columns;

  // Groups per row of `sums` and `sums16`: four columns each fill 32.
  int64_t padded_groups(int group) const { return (padded_columns / group + 7) / 8 * 8; }
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

// Query rows that one item of attention handles, so many that a tile is full.
constexpr int kMaxQueryRows = 16;
// Positions per chunk, aligned to absolute positions: what softmax sees at once. It defines the result.
constexpr int kChunk = 256;

// Attention of `num_queries` consecutive tokens × `num_heads` query heads of one request that share a KV head,
// together at most kMaxQueryRows rows, over a range of chunks.
struct AttentionItem {
  const int32_t* block_table;
  int64_t first_position;  // of query 0; query i sits at first_position + i
  int num_queries, num_heads, kv_head;
  int64_t sliding_window;  // positions a query sees, its own included; 0: all
  float scale;
  const float* q;  // query i, head h at q + i * q_stride + h * q_head_stride
  int64_t q_stride, q_head_stride;
  int64_t first_chunk, end_chunk;
  float* partials;  // null: write `out`; else [chunk][row][padded head size + 2]: sums, largest score, weight
  float* out;       // query i, head h at out + i * out_stride + h * head_dim
  int64_t out_stride;

  int num_rows() const { return num_queries * num_heads; }
};

struct KernelTable {
  // Rows per tile of Activations for a matmul of so many rows; 0: by fma, no tiles are needed.
  int (*tile_rows)(int64_t num_rows);

  // activations.cc
  void (*round_row)(const float* x, int64_t n, int64_t padded, float* values, uint16_t* bf16, int64_t step);
  void (*sum_groups)(const float* values, int64_t padded, int group, int64_t padded_groups, float* pairs, uint16_t* bf16,
                     int64_t step);
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
