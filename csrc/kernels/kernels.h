// The kernels that are compiled once per instruction set, as one namespace sees its own.
#pragma once

#include "kernels/kernel_table.h"
#include "simd/f32x16.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

int tile_rows(int64_t num_rows);
void round_to_whole(const float* x, int64_t n, int64_t padded, const WholeRow& row, uint8_t* tile_row, int64_t tile_step);
void matmul(const PackedMatrix&, int64_t first_panel, int64_t end_panel, const Activations&, const MatmulOutput&);
void rms_norm(const float* x, const float* weight, float epsilon, int64_t n, float* out);
void add_rows(const float* x, float* residual, int64_t n);
void silu_and_mul(const float* gate, const float* up, int64_t n, float* out);
void rotate(float* x, const float* cosines, const float* sines, int64_t half);
void attention(const KVLayer&, const AttentionItem&);
void merge_partials(const KVLayer&, const AttentionItem&);
double burn(int64_t steps);
float max_value(const float* x, int64_t n);
double sum_exp(const float* x, int64_t n, float shift, float* terms);

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
