// One panel of a packed matrix times a few rows of activations, all in registers: the fma form of the matmul.
#pragma once

#include "kernels/kernels.h"
#include "simd/unroll.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

// Rows that share one widening of the codes: bounded by the registers that 3 sums per row need.
#if defined(OCTAVO_ISA_AVX512) || defined(OCTAVO_ISA_AMX)
constexpr int kMaxRows = 8;
#elif defined(OCTAVO_ISA_AVX2)
constexpr int kMaxRows = 2;
#else
constexpr int kMaxRows = 1;
#endif

// How each kind widens: `widen(p, step)` reads kBytes of codes and calls step(pair, even, odd) for kPairs pair rows.
struct NibbleCodes {
  static constexpr int kBytes = 64, kPairs = 4;
  F32x16 table;
  explicit NibbleCodes(const PackedMatrix& w) : table(load(w.values)) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, Step&& step) const {
    const U32x16 x = load_u32(p);
    step(0, lookup16(table, x), lookup16(table, shift_right<16>(x)));
    step(1, lookup16(table, shift_right<4>(x)), lookup16(table, shift_right<20>(x)));
    step(2, lookup16(table, shift_right<8>(x)), lookup16(table, shift_right<24>(x)));
    step(3, lookup16(table, shift_right<12>(x)), lookup16(table, shift_right<28>(x)));
  }
};

struct ByteCodes {
  static constexpr int kBytes = 64, kPairs = 2;
  explicit ByteCodes(const PackedMatrix&) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, Step&& step) const {
    const U32x16 x = load_u32(p);
    step(0, signed_byte<0>(x), signed_byte<2>(x));
    step(1, signed_byte<1>(x), signed_byte<3>(x));
  }
};

struct Bf16Codes {
  static constexpr int kBytes = 64, kPairs = 1;
  explicit Bf16Codes(const PackedMatrix&) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, Step&& step) const {
    const U32x16 x = load_u32(p);
    step(0, even_bf16(x), odd_bf16(x));
  }
};

struct F16Codes {
  static constexpr int kBytes = 64, kPairs = 1;
  explicit F16Codes(const PackedMatrix&) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, Step&& step) const {
    step(0, load_f16(reinterpret_cast<const uint16_t*>(p)), load_f16(reinterpret_cast<const uint16_t*>(p) + 16));
  }
};

struct F32Codes {
  static constexpr int kBytes = 128, kPairs = 1;
  explicit F32Codes(const PackedMatrix&) {}

  template <class Step>
  OCTAVO_INLINE void widen(const uint8_t* p, Step&& step) const {
    step(0, load(reinterpret_cast<const float*>(p)), load(reinterpret_cast<const float*>(p) + 16));
  }
};

template <ScaleKind kind>
OCTAVO_INLINE F32x16 load_scales(const uint8_t* scales, int64_t group) {
  if constexpr (kind == ScaleKind::kF16) {
    return load_f16(reinterpret_cast<const uint16_t*>(scales) + group * kPanel);
  } else {
    return load(reinterpret_cast<const float*>(scales) + group * kPanel);
  }
}

// The two parts of minima, as kernels/packed_matrix.h cuts them.
OCTAVO_INLINE F32x16 high_part(F32x16 minimum) { return from_bits(and_u32(bits(minimum), broadcast_u32(0xffff0000u))); }
OCTAVO_INLINE F32x16 low_part(F32x16 minimum) { return round_to_bf16(sub(minimum, high_part(minimum))); }

// acc += minima × sums of activations.
template <ScaleKind kScale, int R>
OCTAVO_INLINE void add_minima(const PackedMatrix& w, int64_t panel, const Activations& a, int64_t row, F32x16 (&acc)[R]) {
  const uint8_t* minima = w.panel(panel) + w.minima_offset;
  const int64_t num_groups = w.num_groups(), stride = 2 * a.padded_groups(w.group);
  const float* sums = (w.group == 32 ? a.sums : a.sums16).pairs + row * stride;
  F32x16 total[R];
  for (int r = 0; r < R; ++r) total[r] = zero_f32();
  const int64_t step = sum_run(w.group);
  for (int64_t run = 0; run < num_groups; run += step) {
    F32x16 even[R], odd[R];
    for (int r = 0; r < R; ++r) even[r] = odd[r] = zero_f32();
    for (int64_t g = run; g < num_groups && g < run + step; ++g) {
      const F32x16 minimum = load_scales<kScale>(minima, g);
      const F32x16 high = high_part(minimum), low = low_part(minimum);
      for (int r = 0; r < R; ++r) {
        const F32x16 sum_high = broadcast(sums[r * stride + 2 * g]), sum_low = broadcast(sums[r * stride + 2 * g + 1]);
        even[r] = fma(sum_high, low, fma(sum_high, high, even[r]));
        odd[r] = fma(sum_low, low, fma(sum_low, high, odd[r]));
      }
    }
    for (int r = 0; r < R; ++r) total[r] = add(total[r], add(even[r], odd[r]));
  }
  for (int r = 0; r < R; ++r) acc[r] = add(acc[r], total[r]);
}

// Rows `row … row + R - 1` of the activations times one panel.
template <class Codes, ScaleKind kScale, bool kMinima, int R>
void multiply_rows(const PackedMatrix& w, const Codes& codes, int64_t panel, const Activations& a, int64_t row,
                   const MatmulOutput& o) {
  const uint8_t* base = w.panel(panel);
  const uint8_t* p = base;
  const float* x = a.values + row * a.padded_columns;
  const int64_t num_groups = w.num_groups(), words = w.group / (2 * Codes::kPairs);
  F32x16 acc[R];
  for (int r = 0; r < R; ++r) acc[r] = zero_f32();

  for (int64_t g = 0; g < num_groups; ++g) {
    F32x16 even[R], odd[R];
    for (int r = 0; r < R; ++r) even[r] = odd[r] = zero_f32();
    for (int64_t word = 0; word < words; ++word, p += Codes::kBytes, x += 2 * Codes::kPairs) {
      codes.widen(p, [&](int pair, F32x16 w_even, F32x16 w_odd) __attribute__((always_inline)) {
        for (int r = 0; r < R; ++r) {
          even[r] = fma(broadcast(x[r * a.padded_columns + 2 * pair]), w_even, even[r]);
          odd[r] = fma(broadcast(x[r * a.padded_columns + 2 * pair + 1]), w_odd, odd[r]);
        }
      });
    }
    if constexpr (kScale == ScaleKind::kNone) {
      for (int r = 0; r < R; ++r) acc[r] = add(acc[r], add(even[r], odd[r]));
    } else {
      const F32x16 scale = load_scales<kScale>(base + w.scales_offset, g);
      for (int r = 0; r < R; ++r) acc[r] = fma(scale, add(even[r], odd[r]), acc[r]);
    }
  }
  if constexpr (kMinima) add_minima<kScale, R>(w, panel, a, row, acc);

  const int64_t column = panel * kPanel, left = w.num_features - column;
  for (int r = 0; r < R; ++r) {
    float* out = o.out + (row + r) * o.stride + column;
    if (left >= kPanel) {
      store(out, o.bias ? add(acc[r], load(o.bias + column)) : acc[r]);
    } else {
      const int lanes = static_cast<int>(left);
      store_partial(out, lanes, o.bias ? add(acc[r], load_partial(o.bias + column, lanes)) : acc[r]);
    }
  }
}

template <class Codes, ScaleKind kScale, bool kMinima, int R>
void multiply_panel(const PackedMatrix& w, const Codes& codes, int64_t panel, const Activations& a, int64_t row,
                    const MatmulOutput& o) {
  for (; row + R <= a.num_rows; row += R) multiply_rows<Codes, kScale, kMinima, R>(w, codes, panel, a, row, o);
  if constexpr (R > 1) {
    if (row < a.num_rows) multiply_panel<Codes, kScale, kMinima, R / 2>(w, codes, panel, a, row, o);
  }
}

template <class Codes, ScaleKind kScale, bool kMinima>
void multiply_panels(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a,
                     const MatmulOutput& o) {
  const Codes codes(w);
  for (int64_t panel = first_panel; panel < end_panel; ++panel) {
    multiply_panel<Codes, kScale, kMinima, kMaxRows>(w, codes, panel, a, 0, o);
  }
}

// Calls f.template operator()<ScaleKind, has minima>() for what the matrix has.
template <class F>
void with_scales(const PackedMatrix& w, F&& f) {
  if (w.scale_kind == ScaleKind::kF16) {
    w.has_minima ? f.template operator()<ScaleKind::kF16, true>() : f.template operator()<ScaleKind::kF16, false>();
  } else {
    w.has_minima ? f.template operator()<ScaleKind::kF32, true>() : f.template operator()<ScaleKind::kF32, false>();
  }
}

inline void matmul_by_fma(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a,
                          const MatmulOutput& o) {
  switch (w.kind) {
    case PackKind::kNibble:
      with_scales(w, [&]<ScaleKind s, bool m>() { multiply_panels<NibbleCodes, s, m>(w, first_panel, end_panel, a, o); });
      break;
    case PackKind::kByte:
      with_scales(w, [&]<ScaleKind s, bool m>() { multiply_panels<ByteCodes, s, m>(w, first_panel, end_panel, a, o); });
      break;
    case PackKind::kBf16:
      multiply_panels<Bf16Codes, ScaleKind::kNone, false>(w, first_panel, end_panel, a, o);
      break;
    case PackKind::kF16:
      multiply_panels<F16Codes, ScaleKind::kNone, false>(w, first_panel, end_panel, a, o);
      break;
    case PackKind::kF32:
      multiply_panels<F32Codes, ScaleKind::kNone, false>(w, first_panel, end_panel, a, o);
      break;
  }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
