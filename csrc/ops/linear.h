// Matrix products, row look-ups, norms and activation functions over whole arrays.
#pragma once

#include "ops/runtime.h"
#include "ops/weight.h"

namespace octavo {

// The left operand of a product, in the forms that a weight's matrices want. It lies in the runtime's scratch memory:
// the next one takes its place.
struct LeftOperand : Activations {  // `values` and `whole` are null where no matrix wants the form
  int64_t padded_rows;              // rows to fill; those from num_rows on are zero

  // Row `row` from x, which is ignored for a padding row.
  void fill(const KernelTable& kernels, int64_t row, const float* x) const;
};
LeftOperand allocate_left(Runtime& runtime, int64_t num_rows, const Weight& weight);

// out = left @ weight.T + bias, rows of weight.num_features(); bias may be null.
void multiply(Runtime& runtime, const LeftOperand& left, const Weight& weight, const float* bias, Rows<float> out);

// The same from plain rows.
void linear(Runtime& runtime, Rows<const float> x, const Weight& weight, const float* bias, Rows<float> out);

// Rows of the weight. Throws Refusal for an id that it does not have.
void embedding(Runtime& runtime, const Weight& weight, const int32_t* ids, Rows<float> out);

void rms_norm(Runtime& runtime, Heads<const float> x, const float* weight, float epsilon, float* out);
void add_rms_norm(Runtime& runtime, Rows<const float> x, Rows<float> residual, const float* weight, float epsilon,
                  Rows<float> out);
void act_and_mul(Runtime& runtime, Rows<const float> x, Rows<float> out);

// Rotates the first `rotary_dim` elements of every head by the angles of its row's position. `cos_sin` has rows of
// rotary_dim / 2 cosines, then as many sines. Throws Refusal for a position that it does not have.
void rotary_embedding(Runtime& runtime, Heads<float> x, const int32_t* positions, Rows<const float> cos_sin);

}  // namespace octavo
