// Panels of a packed matrix times rows of activations.
//
//   few rows    elements ──widen──▶ registers ──multiply──▶ sums of a group ──scale──▶ acc, all in registers
//   many rows   elements ──widen──▶ a block of columns in L1 ──multiply, a few rows at a time──▶ sums ──scale──▶ acc in L1
//
// Many rows share one widening; a few at a time is what the registers hold the sums of.
#pragma once

#include <algorithm>

#include "kernels/matmul_arithmetic.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

// kFewRows: up to here each row group widens for itself. kLatencyPanels: panels at a time for a single row, whose sums
// would otherwise wait for each other. kPrefetch: bytes ahead, across panels, to ask memory for while few rows stream by;
// 0: left to the processor.
#if defined(OCTAVO_ISA_AVX512) || defined(OCTAVO_ISA_AMX)
constexpr int kFewRows = 8, kLatencyPanels = 2, kPrefetch = 0;
#elif defined(OCTAVO_ISA_AVX2) || defined(OCTAVO_ISA_NEON)
constexpr int kFewRows = 2, kLatencyPanels = 2, kPrefetch = 16384;
#else
constexpr int kFewRows = 1, kLatencyPanels = 1, kPrefetch = 0;
#endif
constexpr int kBlockBytes = 8192;  // of widened columns
constexpr int kSharingRows = 64;   // that share one widening: their sums wait in L1 while the columns go by

OCTAVO_INLINE void write_row(const PackedMatrix& w, int64_t panel, int64_t row, F32x16 acc, const MatmulOutput& o) {
  const int64_t column = panel * kPanel, left = w.num_features - column;
  float* out = o.out + row * o.stride + column;
  store_up_to(out, left, o.bias ? add(acc, load_up_to(o.bias + column, left)) : acc);
}

// Rows `row … row + R - 1` of the activations times panels `panel … panel + P - 1`.
template <class Arithmetic, class Elements, int R, int P>
void multiply_rows(const Arithmetic& arithmetic, const PackedMatrix& w, const Elements& elements, int64_t panel,
                   const Activations& a, int64_t row, const MatmulOutput& o) {
  const uint8_t* base = w.panel(panel);
  const auto* x = arithmetic.left(row);
  F32x16 acc[P][R];
  unroll<P>([&](auto j) { unroll<R>([&](auto r) { acc[j][r] = zero_f32(); }); });

  const uint8_t* p = base;
  const int64_t num_groups = w.padded_columns / Arithmetic::kGroup;
  for (int64_t g = 0; g < num_groups; ++g) {
    typename Arithmetic::Sum sum[P][R];
    unroll<P>([&](auto j) { unroll<R>([&](auto r) { sum[j][r] = arithmetic.start(row + r, g); }); });
    for (int k = 0; k < Arithmetic::kGroup; k += 2 * Elements::kPairs, p += Elements::kBytes, x += 2 * Elements::kPairs) {
      unroll<P>([&](auto j) __attribute__((always_inline)) {
        if constexpr (kPrefetch > 0) __builtin_prefetch(p + j * w.panel_bytes + kPrefetch);
        elements.widen(p + j * w.panel_bytes, [&](auto pair, auto values) __attribute__((always_inline)) {
          unroll<R>([&](auto r) __attribute__((always_inline)) {
            Arithmetic::step(sum[j][r], x + r * a.padded_columns + 2 * pair, values);
          });
        });
      });
    }
    unroll<P>([&](auto j) __attribute__((always_inline)) {
      const auto factors = arithmetic.factors(base + j * w.panel_bytes, g);
      unroll<R>([&](auto r) __attribute__((always_inline)) {
        acc[j][r] = arithmetic.finish(sum[j][r], factors, row + r, g, acc[j][r]);
      });
    });
  }
  unroll<P>([&](auto j) { unroll<R>([&](auto r) { write_row(w, panel + j, row + r, acc[j][r], o); }); });
}

template <int R, class Arithmetic, class Elements>
void multiply_few(const Arithmetic& arithmetic, const PackedMatrix& w, const Elements& elements, int64_t first_panel,
                  int64_t end_panel, const Activations& a, int64_t row, const MatmulOutput& o) {
  for (; row + R <= a.num_rows; row += R) {
    int64_t panel = first_panel;
    constexpr int P = R == 1 ? kLatencyPanels : 1;
    for (; panel + P <= end_panel; panel += P) {
      multiply_rows<Arithmetic, Elements, R, P>(arithmetic, w, elements, panel, a, row, o);
    }
    for (; panel < end_panel; ++panel) {
      multiply_rows<Arithmetic, Elements, R, 1>(arithmetic, w, elements, panel, a, row, o);
    }
  }
  if constexpr (R > 1) {
    if (row < a.num_rows) multiply_few<R / 2>(arithmetic, w, elements, first_panel, end_panel, a, row, o);
  }
}

// Many rows times one panel. The sums of all rows and the part of the panel that is widened stay in L1.
template <class Arithmetic>
class ManyRows {
 public:
  ManyRows(const Arithmetic& arithmetic, const PackedMatrix& w, const MatmulOutput& o)
      : arithmetic_(arithmetic), w_(w), o_(o) {}

  // Rows first_row … end_row - 1, at most kSharingRows.
  template <class Elements>
  void run(const Elements& elements, int64_t panel, int64_t first_row, int64_t end_row) {
    for (int64_t i = 0; i < end_row - first_row; ++i) store(sums_ + i * kPanel, zero_f32());
    for (int64_t column = 0; column < w_.padded_columns; column += kBlockColumns) {
      const int64_t end = std::min(column + kBlockColumns, w_.padded_columns);
      widen(elements, panel, column, end);
      multiply_block<Arithmetic::kBlockRows>(w_.panel(panel), first_row, first_row, end_row, column, end);
    }
    for (int64_t row = first_row; row < end_row; ++row) {
      write_row(w_, panel, row, load(sums_ + (row - first_row) * kPanel), o_);
    }
  }

 private:
  static constexpr int64_t kBlockColumns = kBlockBytes / Arithmetic::kPairBytes * 2;

  template <class Elements>
  void widen(const Elements& elements, int64_t panel, int64_t column, int64_t end) {
    const uint8_t* p = w_.panel(panel) + column / (2 * Elements::kPairs) * Elements::kBytes;
    uint8_t* target = widened_;
    for (; column < end; column += 2 * Elements::kPairs, p += Elements::kBytes) {
      elements.widen(p, [&](auto pair, auto values) __attribute__((always_inline)) {
        Arithmetic::store_pair(target + pair * Arithmetic::kPairBytes, values);
      });
      target += Elements::kPairs * Arithmetic::kPairBytes;
    }
  }

  // R rows at a time, fewer at the end.
  template <int R>
  void multiply_block(const uint8_t* panel, int64_t row, int64_t first_row, int64_t end_row, int64_t column, int64_t end) {
    for (; row + R <= end_row; row += R) multiply<R>(panel, row, column, end, sums_ + (row - first_row) * kPanel);
    if constexpr (R > 1) multiply_block<(R + 1) / 2>(panel, row, first_row, end_row, column, end);
  }

  // The widened columns times R rows from `row` on. A function of its own: its registers are all taken.
  template <int R>
  [[gnu::noinline]] void multiply(const uint8_t* panel, int64_t row, int64_t column, int64_t end, float* sums) const {
    constexpr int kGroup = Arithmetic::kGroup;
    const uint8_t* b = widened_;
    const typename Arithmetic::Left* x[R];
    unroll<R>([&](auto r) { x[r] = arithmetic_.left(row + r) + column; });
    for (int64_t g = column / kGroup; g < end / kGroup; ++g) {
      typename Arithmetic::Sum sum[R];
      unroll<R>([&](auto r) { sum[r] = arithmetic_.start(row + r, g); });
      for (int k = 0; k < kGroup; k += 8, b += 4 * Arithmetic::kPairBytes) {
        unroll<4>([&](auto pair) __attribute__((always_inline)) {
          Arithmetic::template step_rows<R>(sum, x, 2 * pair, b + pair * Arithmetic::kPairBytes);
        });
        unroll<R>([&](auto r) { x[r] += 8; });
      }
      const auto factors = arithmetic_.factors(panel, g);
      unroll<R>([&](auto r) {
        float* acc = sums + r * kPanel;
        store(acc, arithmetic_.finish(sum[r], factors, row + r, g, load(acc)));
      });
    }
  }

  const Arithmetic& arithmetic_;
  const PackedMatrix& w_;
  const MatmulOutput& o_;
  alignas(64) uint8_t widened_[kBlockBytes];            // [pair rows]
  alignas(64) float sums_[kSharingRows * kPanel];       // [rows][16 features]
};

template <class Arithmetic, class Elements>
void multiply_panels(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a,
                     const MatmulOutput& o) {
  const Arithmetic arithmetic(w, a);
  const Elements elements(w);
  if (a.num_rows <= kFewRows) {
    return multiply_few<kFewRows>(arithmetic, w, elements, first_panel, end_panel, a, 0, o);
  }
  ManyRows<Arithmetic> many(arithmetic, w, o);
  for (int64_t row = 0; row < a.num_rows; row += kSharingRows) {
    for (int64_t panel = first_panel; panel < end_panel; ++panel) {
      many.run(elements, panel, row, std::min(row + kSharingRows, a.num_rows));
    }
  }
}

inline bool stand_for_themselves(const uint8_t* values) {
  for (int i = 0; i < 16; ++i) {
    if (values[i] != i) return false;
  }
  return true;
}

inline void matmul_by_vectors(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a,
                              const MatmulOutput& o) {
  if (w.has_codes()) {
    with_code_arithmetic(w, [&]<ScaleKind s, Shift shift, int g>() {
      using Arithmetic = CodeArithmetic<s, shift, g>;
      if (w.kind == PackKind::kByte) return multiply_panels<Arithmetic, ByteElements>(w, first_panel, end_panel, a, o);
      if (stand_for_themselves(w.values)) {
        return multiply_panels<Arithmetic, NibbleElements>(w, first_panel, end_panel, a, o);
      }
      multiply_panels<Arithmetic, TableElements>(w, first_panel, end_panel, a, o);
    });
  } else if (w.kind == PackKind::kBf16) {
    multiply_panels<NumberArithmetic, Bf16Elements>(w, first_panel, end_panel, a, o);
  } else if (w.kind == PackKind::kF16) {
    multiply_panels<NumberArithmetic, F16Elements>(w, first_panel, end_panel, a, o);
  } else {
    multiply_panels<NumberArithmetic, F32Elements>(w, first_panel, end_panel, a, o);
  }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
