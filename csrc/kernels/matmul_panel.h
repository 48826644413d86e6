// Panels of a packed matrix times rows of activations by fused multiply-adds.
//
//   few rows    codes ──widen──▶ registers ──fma──▶ even, odd of a group ──scale──▶ acc, all in registers
//   many rows   codes ──widen──▶ a block of columns in L1 ──fma, a few rows at a time──▶ even, odd ──scale──▶ acc in L1
//
// Many rows share one widening; a few at a time is what the registers hold two sums of.
#pragma once

#include <algorithm>

#include "kernels/matmul_codes.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

// kConverts: widening plain codes by conversion is faster than by look-up.
// kFewRows: up to here each row group widens for itself. kLatencyPanels: panels at a time for a single row, whose two
// sums per panel would otherwise wait for each other. kBlockRows: rows at a time of many, two sums each in registers.
// kPrefetch: bytes ahead, across panels, to ask memory for while few rows stream by; 0: left to the processor.
#if defined(OCTAVO_ISA_AVX512) || defined(OCTAVO_ISA_AMX)
constexpr bool kConverts = false;
constexpr int kFewRows = 8, kLatencyPanels = 1, kBlockRows = 8, kPrefetch = 0;
#elif defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_NEON)
constexpr bool kConverts = true;
constexpr int kFewRows = 2, kLatencyPanels = 2, kBlockRows = 3, kPrefetch = 16384;
#else
constexpr bool kConverts = false;
constexpr int kFewRows = 1, kLatencyPanels = 1, kBlockRows = 1, kPrefetch = 0;
#endif
constexpr int kBlockColumns = 128;  // widened at a time: 8 KB
constexpr int kSharingRows = 64;    // that share one widening: their sums wait in L1 while the columns go by

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
      const F32x16 high = high_part(minimum), low = low_part<kScale>(minimum);
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

OCTAVO_INLINE void write_row(const PackedMatrix& w, int64_t panel, int64_t row, F32x16 acc, const MatmulOutput& o) {
  const int64_t column = panel * kPanel, left = w.num_features - column;
  float* out = o.out + row * o.stride + column;
  if (left >= kPanel) {
    store(out, o.bias ? add(acc, load(o.bias + column)) : acc);
  } else {
    const int lanes = static_cast<int>(left);
    store_partial(out, lanes, o.bias ? add(acc, load_partial(o.bias + column, lanes)) : acc);
  }
}

template <ScaleKind kScale>
OCTAVO_INLINE F32x16 add_scaled(const uint8_t* scales, int64_t group, F32x16 sum, F32x16 acc) {
  if constexpr (kScale == ScaleKind::kNone) {
    return add(acc, sum);
  } else {
    return fma(load_scales<kScale>(scales, group), sum, acc);
  }
}

// Rows `row … row + R - 1` of the activations times panels `panel … panel + P - 1`.
template <class Codes, ScaleKind kScale, bool kMinima, int R, int P>
void multiply_rows(const PackedMatrix& w, const Codes& codes, int64_t panel, const Activations& a, int64_t row,
                   const MatmulOutput& o) {
  const uint8_t* base = w.panel(panel);
  const float* x = a.values + row * a.padded_columns;
  const int64_t num_groups = w.num_groups(), words = w.group / Codes::kColumns;
  F32x16 acc[P][R];
  unroll<P>([&](auto j) { unroll<R>([&](auto r) { acc[j][r] = zero_f32(); }); });

  const uint8_t* p = base;
  for (int64_t g = 0; g < num_groups; ++g) {
    F32x16 sum[2][P][R];  // of even and of odd columns
    unroll<P>([&](auto j) { unroll<R>([&](auto r) { sum[0][j][r] = sum[1][j][r] = zero_f32(); }); });
    for (int64_t word = 0; word < words; ++word, p += Codes::kBytes, x += Codes::kColumns) {
      unroll<P>([&](auto j) __attribute__((always_inline)) {
        if constexpr (kPrefetch > 0) __builtin_prefetch(p + j * w.panel_bytes + kPrefetch);
        codes.widen(p + j * w.panel_bytes, [&](auto c, F32x16 values) __attribute__((always_inline)) {
          unroll<R>([&](auto r) __attribute__((always_inline)) {
            sum[c % 2][j][r] = fma(broadcast(x[r * a.padded_columns + c]), values, sum[c % 2][j][r]);
          });
        });
      });
    }
    unroll<P>([&](auto j) __attribute__((always_inline)) {
      const uint8_t* scales = base + j * w.panel_bytes + w.scales_offset;
      unroll<R>([&](auto r) __attribute__((always_inline)) {
        acc[j][r] = add_scaled<kScale>(scales, g, add(sum[0][j][r], sum[1][j][r]), acc[j][r]);
      });
    });
  }
  unroll<P>([&](auto j) __attribute__((always_inline)) {
    if constexpr (kMinima) add_minima<kScale, R>(w, panel + j, a, row, acc[j]);
    unroll<R>([&](auto r) { write_row(w, panel + j, row + r, acc[j][r], o); });
  });
}

template <class Codes, ScaleKind kScale, bool kMinima, int R>
void multiply_few(const PackedMatrix& w, const Codes& codes, int64_t first_panel, int64_t end_panel,
                  const Activations& a, int64_t row, const MatmulOutput& o) {
  for (; row + R <= a.num_rows; row += R) {
    int64_t panel = first_panel;
    constexpr int P = R == 1 ? kLatencyPanels : 1;
    for (; panel + P <= end_panel; panel += P) multiply_rows<Codes, kScale, kMinima, R, P>(w, codes, panel, a, row, o);
    for (; panel < end_panel; ++panel) multiply_rows<Codes, kScale, kMinima, R, 1>(w, codes, panel, a, row, o);
  }
  if constexpr (R > 1) {
    if (row < a.num_rows) multiply_few<Codes, kScale, kMinima, R / 2>(w, codes, first_panel, end_panel, a, row, o);
  }
}

// Many rows times one panel. The sums of all rows and the part of the panel that is widened stay in L1.
template <ScaleKind kScale, bool kMinima>
class ManyRows {
 public:
  ManyRows(const PackedMatrix& w, const Activations& a, const MatmulOutput& o)
      : w_(w), a_(a), o_(o), groups_((w.group == 32 ? a.sums : a.sums16).pairs), groups_stride_(2 * a.padded_groups(w.group)) {}

  // Rows first_row … end_row - 1, at most kSharingRows.
  template <class Codes>
  void run(const Codes& codes, int64_t panel, int64_t first_row, int64_t end_row) {
    const int64_t count = end_row - first_row;
    for (int64_t i = 0; i < count * kPanel; i += kPanel) {
      store(sums_ + i, zero_f32());
      if constexpr (kMinima) store(minima_ + i, zero_f32());
    }
    for (int64_t column = 0; column < w_.padded_columns; column += kBlockColumns) {
      const int64_t end = std::min(column + kBlockColumns, w_.padded_columns);
      widen(codes, panel, column, end);
      const uint8_t* scales = w_.panel(panel) + w_.scales_offset;
      by_rows<kBlockRows>(count, [&]<int R>(int64_t i) __attribute__((always_inline)) {
        const float* x = a_.values + (first_row + i) * a_.padded_columns;
        if (w_.group == 32) {
          multiply<R, 32>(x, column, end, scales, sums_ + i * kPanel);
        } else {
          multiply<R, 16>(x, column, end, scales, sums_ + i * kPanel);
        }
      });
    }
    if constexpr (kMinima) {
      constexpr int64_t step = kBlockColumns / 2;
      for (int64_t group = 0; group < w_.num_groups(); group += step) {
        const int64_t end = std::min(group + step, w_.num_groups());
        widen_minima(panel, group, end);
        by_rows<kBlockRows>(count, [&]<int R>(int64_t i) __attribute__((always_inline)) {
          multiply_minima<R>(groups_ + (first_row + i) * groups_stride_, group, end, minima_ + i * kPanel);
        });
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      const F32x16 sum = load(sums_ + i * kPanel);
      write_row(w_, panel, first_row + i, kMinima ? add(sum, load(minima_ + i * kPanel)) : sum, o_);
    }
  }

 private:
  // Calls f.template operator()<R>(row) for blocks of R rows, smaller ones at the end.
  template <int R, class F>
  static OCTAVO_INLINE void by_rows(int64_t count, const F& f, int64_t row = 0) {
    for (; row + R <= count; row += R) f.template operator()<R>(row);
    if constexpr (R > 1) by_rows<(R + 1) / 2>(count, f, row);
  }

  template <class Codes>
  void widen(const Codes& codes, int64_t panel, int64_t column, int64_t end) {
    const uint8_t* p = w_.panel(panel) + column / Codes::kColumns * Codes::kBytes;
    float* target = widened_;
    for (; column < end; column += Codes::kColumns, target += Codes::kColumns * kPanel, p += Codes::kBytes) {
      codes.widen(p, [&](auto c, F32x16 values) __attribute__((always_inline)) { store(target + c * kPanel, values); });
    }
  }

  void widen_minima(int64_t panel, int64_t group, int64_t end) {
    const uint8_t* minima = w_.panel(panel) + w_.minima_offset;
    for (float* target = widened_; group < end; ++group, target += 2 * kPanel) {
      const F32x16 minimum = load_scales<kScale>(minima, group);
      store(target, high_part(minimum));
      store(target + kPanel, low_part<kScale>(minimum));
    }
  }

  // The widened columns times R rows from x on. A function of its own: its registers are all taken.
  template <int R, int kGroup>
  [[gnu::noinline]] void multiply(const float* x, int64_t column, int64_t end, const uint8_t* scales, float* sums) const {
    const float* b = widened_;
    const float* rows[R];
    unroll<R>([&](auto r) { rows[r] = x + r * a_.padded_columns + column; });
    for (; column < end; column += kGroup) {
      F32x16 even[R], odd[R];
      unroll<R>([&](auto r) { even[r] = odd[r] = zero_f32(); });
      for (int k = 0; k < kGroup; k += 8, b += 8 * kPanel) {
        unroll<4>([&](auto pair) __attribute__((always_inline)) {
          const F32x16 w_even = load_once(b + 2 * pair * kPanel);
          unroll<R>([&](auto r) { even[r] = fma(broadcast(rows[r][2 * pair]), w_even, even[r]); });
          const F32x16 w_odd = load_once(b + (2 * pair + 1) * kPanel);
          unroll<R>([&](auto r) { odd[r] = fma(broadcast(rows[r][2 * pair + 1]), w_odd, odd[r]); });
        });
        unroll<R>([&](auto r) { rows[r] += 8; });
      }
      unroll<R>([&](auto r) {
        float* sum = sums + r * kPanel;
        store(sum, add_scaled<kScale>(scales, column / kGroup, add(even[r], odd[r]), load(sum)));
      });
    }
  }

  // The widened minima times the sums of R rows' groups.
  template <int R>
  void multiply_minima(const float* x, int64_t group, int64_t end, float* sums) const {
    const float* b = widened_;
    while (group < end) {
      const int64_t end_of_run = std::min<int64_t>(group + sum_run(w_.group), end);
      F32x16 even[R], odd[R];
      for (int r = 0; r < R; ++r) even[r] = odd[r] = zero_f32();
      for (; group < end_of_run; ++group, b += 2 * kPanel) {
        for (int part = 0; part < 2; ++part) {
          const F32x16 minima = load_once(b + part * kPanel);
          for (int r = 0; r < R; ++r) {
            const float* pair = x + r * groups_stride_ + 2 * group;
            even[r] = fma(broadcast(pair[0]), minima, even[r]);
            odd[r] = fma(broadcast(pair[1]), minima, odd[r]);
          }
        }
      }
      for (int r = 0; r < R; ++r) store(sums + r * kPanel, add(load(sums + r * kPanel), add(even[r], odd[r])));
    }
  }

  const PackedMatrix& w_;
  const Activations& a_;
  const MatmulOutput& o_;
  const float* const groups_;  // sums of groups of activations: [rows][groups][high, low]
  const int64_t groups_stride_;
  alignas(64) float widened_[kBlockColumns * kPanel];                           // [columns][16 features]
  alignas(64) float sums_[kSharingRows * kPanel], minima_[kSharingRows * kPanel];  // [rows][16 features]
};

template <class Codes, ScaleKind kScale, bool kMinima>
void multiply_panels(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a,
                     const MatmulOutput& o) {
  const Codes codes(w);
  if (a.num_rows <= kFewRows) {
    return multiply_few<Codes, kScale, kMinima, kFewRows>(w, codes, first_panel, end_panel, a, 0, o);
  }
  ManyRows<kScale, kMinima> many(w, a, o);
  for (int64_t row = 0; row < a.num_rows; row += kSharingRows) {
    for (int64_t panel = first_panel; panel < end_panel; ++panel) {
      many.run(codes, panel, row, std::min(row + kSharingRows, a.num_rows));
    }
  }
}

inline bool stands_for_itself(const PackedMatrix& w) {
  for (int i = 0; i < 16; ++i) {
    if (w.values[i] != static_cast<float>(i)) return false;
  }
  return true;
}

inline void matmul_by_fma(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a,
                          const MatmulOutput& o) {
  switch (w.kind) {
    case PackKind::kNibble:
      with_scales(w, [&]<ScaleKind s, bool m>() {
        if constexpr (kConverts) {
          if (stands_for_itself(w)) return multiply_panels<PlainNibbleCodes, s, m>(w, first_panel, end_panel, a, o);
        }
        multiply_panels<NibbleCodes, s, m>(w, first_panel, end_panel, a, o);
      });
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
