// The running softmax of a few query rows: chunks are computed from scratch and folded in, in ascending order.
//
// A chunk of one row is (m, l, sums): the largest score, the sum of w = exp(score - m), and the sum of w * value. Folding
// chunk c into the state s is, in this order of operations,
//
//   m = max(s.m, c.m);  a = exp(s.m - m);  b = exp(c.m - m);  l = s.l * a + c.l * b;  sums = fma(c.sums, b, s.sums * a)
//
// and the result is sums / l. The same fold whether one thread walks the chunks or several share them, and whether a
// token is prefilled or decoded: so neither changes a bit.
#pragma once

#include <cmath>

#include "kernels/kernels.h"
#include "simd/exp.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

constexpr int kMaxHeadDim = 256;

inline float exp_scalar(float x) {
  float lanes[16];
  store(lanes, exp(broadcast(x)));
  return lanes[0];
}

struct RowState {
  float m, l;  // l is 0 while the row has seen nothing
  alignas(64) float sums[kMaxHeadDim];
};

inline void fold_chunk(RowState& s, float m, float l, const float* sums, int padded_dim) {
  if (l == 0) return;  // the row sees nothing of this chunk
  if (s.l == 0) {
    s.m = m;
    s.l = l;
    for (int d = 0; d < padded_dim; d += 16) store(s.sums + d, load(sums + d));
    return;
  }
  const float largest = s.m > m ? s.m : m;
  const float a = exp_scalar(s.m - largest), b = exp_scalar(m - largest);
  s.m = largest;
  s.l = s.l * a + l * b;
  for (int d = 0; d < padded_dim; d += 16) {
    store(s.sums + d, fma(load(sums + d), broadcast(b), mul(load(s.sums + d), broadcast(a))));
  }
}

inline void write_result(const RowState& s, float* out, int head_dim) {
  const F32x16 l = broadcast(s.l);
  for (int d = 0; d < head_dim; d += 16) store_up_to(out + d, head_dim - d, div(load(s.sums + d), l));
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
