// Matmul on packed matrices by tiles: what TDPBF16PS computes is the definition of kernels/packed_matrix.h.
//
//   codes ──widen──▶ B tiles (L1) ─┐
//                                  ├─▶ even + odd of a group, M rows × 16 features ──scale──▶ acc, in registers
//   activations ────▶ A tiles ─────┘
//
// A panel is widened once for all rows. Four products are in flight: each step stores the product of four groups ago,
// starts the next one in its tile, and scales the stored one, so that the tile unit and the vector unit overlap.
// One or two rows are faster by fma: the tile unit takes as long for their loads as for sixteen rows.
#include "kernels/matmul_panel.h"
#include "kernels/tiles.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

constexpr int kInFlight = 4;                      // result tiles
constexpr int kMaxRowsByFma = 2;                  // up to here fused multiply-adds win
constexpr int64_t kGroupBytes = 16 * kTileBytes;  // of a widened group of 32, and of a widened run of minima

int rows_per_tile(int64_t num_rows) { return num_rows <= 4 ? 4 : num_rows <= 8 ? 8 : 16; }

// Where a thread widens a panel: its groups, then its runs of minima.
struct WidenedPanel {
  uint8_t* groups;
  uint8_t* minima;
};

template <PackKind kKind, ScaleKind kScale, bool kMinima, int M>
class PanelByTiles {
 public:
  PanelByTiles(const PackedMatrix& w, const Activations& a, const MatmulOutput& o, const WidenedPanel& widened)
      : w_(w), a_(a), o_(o), widened_(widened), num_groups_(w.num_groups()) {}

  // Rows row … row + M - 1 of the product; `fresh`: the panel is not widened yet.
  void multiply(int64_t panel, int64_t row, bool fresh) {
    const uint8_t* base = w_.panel(panel);
    F32x16 acc[M];
    for (int m = 0; m < M; ++m) acc[m] = zero_f32();

    const int64_t first_drained = std::max<int64_t>(0, num_groups_ - kInFlight);
    if (fresh) widen(base, 0, 2 * kInFlight);
    for (int64_t g = 0; g < num_groups_; g += kInFlight) {
      if (fresh) widen(base, g + 2 * kInFlight, g + 3 * kInFlight);
      step<0>(base, row, g, acc);
      step<1>(base, row, g + 1, acc);
      step<2>(base, row, g + 2, acc);
      step<3>(base, row, g + 3, acc);
    }
    for (int64_t g = first_drained; g < num_groups_; ++g) {
      switch (g % kInFlight) {
        case 0: _tile_stored(0, products_[0], kTileBytes); break;
        case 1: _tile_stored(1, products_[1], kTileBytes); break;
        case 2: _tile_stored(2, products_[2], kTileBytes); break;
        case 3: _tile_stored(3, products_[3], kTileBytes); break;
      }
      scale(base, g, acc);
    }
    if constexpr (kMinima) add_minima_by_tiles(base, row, fresh, acc);
    store_rows(panel, row, acc);
  }

 private:
  void widen(const uint8_t* base, int64_t first, int64_t end) const {
    const int64_t code_bytes = w_.group * kPanel * code_bits(kKind) / 8;
    for (int64_t g = first; g < end && g < num_groups_; ++g) {
      widen_group<kKind>(w_, base + g * code_bytes, w_.group, widened_.groups + g * kGroupBytes);
    }
  }

  // Starts the product of group g in result tile kTile, after storing the one that was there, which it then scales.
  // The intrinsics paste their tile numbers into assembly, so they must be literals.
  template <int kTile>
  OCTAVO_INLINE void step(const uint8_t* base, int64_t row, int64_t g, F32x16 (&acc)[M]) {
    if (g >= num_groups_) return;
    const uint16_t* a = a_.bf16 + row * a_.padded_columns + g * w_.group;
    const int64_t stride = a_.padded_columns * 2;
    const uint8_t* b = widened_.groups + g * kGroupBytes;
#define OCTAVO_STEP(tile, a_tile, b_tile)                                   \
  if constexpr (kTile == tile) {                                            \
    if (g >= kInFlight) _tile_stored(tile, products_[tile], kTileBytes);    \
    _tile_zero(tile);                                                       \
    _tile_loadd(a_tile, a, stride);                                         \
    _tile_loadd(b_tile, b, kTileBytes);                                     \
    _tile_dpbf16ps(tile, a_tile, b_tile);                                   \
  }
    OCTAVO_STEP(0, 4, 6)
    OCTAVO_STEP(1, 5, 7)
    OCTAVO_STEP(2, 4, 6)
    OCTAVO_STEP(3, 5, 7)
#undef OCTAVO_STEP
    if (g >= kInFlight) scale(base, g - kInFlight, acc);
  }

  OCTAVO_INLINE void scale(const uint8_t* base, int64_t g, F32x16 (&acc)[M]) const {
    const F32x16 scales = load_scales<kScale>(base + w_.scales_offset, g);
    const float* product = products_[g % kInFlight];
    for (int m = 0; m < M; ++m) acc[m] = fma(scales, load(product + m * 16), acc[m]);
  }

  // Two pair rows per group: (high, high) and (low, low).
  void widen_minima(const uint8_t* base) const {
    uint8_t* b = widened_.minima;
    for (int64_t g = 0; g < w_.num_sum_runs() * sum_run(w_.group); ++g, b += 2 * kTileBytes) {
      const F32x16 minima = g < num_groups_ ? load_scales<kScale>(base + w_.minima_offset, g) : zero_f32();
      store_pairs(b, high_part(minima), high_part(minima));
      store_pairs(b + kTileBytes, low_part(minima), low_part(minima));
    }
  }

  OCTAVO_INLINE void add_minima_by_tiles(const uint8_t* base, int64_t row, bool fresh, F32x16 (&acc)[M]) {
    if (fresh) widen_minima(base);
    const int64_t stride = 4 * a_.padded_groups(w_.group);
    const uint16_t* sums = (w_.group == 32 ? a_.sums : a_.sums16).bf16 + row * stride;
    _tile_zero(0);
    for (int64_t run = 0; run < w_.num_sum_runs(); ++run) {
      _tile_loadd(4, sums + run * w_.group, stride * 2);
      _tile_loadd(6, widened_.minima + run * w_.group / 2 * kTileBytes, kTileBytes);
      _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, products_[0], kTileBytes);
    for (int m = 0; m < M; ++m) acc[m] = add(acc[m], load(products_[0] + m * 16));
  }

  void store_rows(int64_t panel, int64_t row, const F32x16 (&acc)[M]) const {
    const int64_t column = panel * kPanel, left = w_.num_features - column;
    const int lanes = left >= kPanel ? kPanel : static_cast<int>(left);
    const F32x16 bias = o_.bias ? load_partial(o_.bias + column, lanes) : zero_f32();
    for (int m = 0; m < M; ++m) {
      if (row + m >= a_.num_rows) break;
      store_partial(o_.out + (row + m) * o_.stride + column, lanes, o_.bias ? add(acc[m], bias) : acc[m]);
    }
  }

  const PackedMatrix& w_;
  const Activations& a_;
  const MatmulOutput& o_;
  const WidenedPanel widened_;
  const int64_t num_groups_;
  alignas(64) float products_[kInFlight][M * 16];
};

WidenedPanel widening_space(const PackedMatrix& w) {
  struct Space {
    uint8_t* data = nullptr;
    int64_t bytes = 0;
    ~Space() { _mm_free(data); }
  };
  thread_local Space space;
  const int64_t group_bytes = w.num_groups() * kGroupBytes, bytes = group_bytes + w.num_sum_runs() * kGroupBytes;
  if (bytes > space.bytes) {
    _mm_free(space.data);
    space.data = static_cast<uint8_t*>(_mm_malloc(static_cast<size_t>(bytes), 64));
    space.bytes = space.data ? bytes : 0;
  }
  return {space.data, space.data ? space.data + group_bytes : nullptr};
}

template <PackKind kKind, ScaleKind kScale, bool kMinima, int M>
void multiply_panels_of(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a,
                        const MatmulOutput& o, const WidenedPanel& widened) {
  configure_tiles(M, w.group);
  PanelByTiles<kKind, kScale, kMinima, M> product(w, a, o, widened);
  for (int64_t panel = first_panel; panel < end_panel; ++panel) {
    for (int64_t row = 0; row < a.num_rows; row += M) product.multiply(panel, row, row == 0);
  }
}

template <PackKind kKind>
void multiply_by_tiles(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a,
                       const MatmulOutput& o) {
  const WidenedPanel widened = widening_space(w);
  if (!widened.groups) return matmul_by_fma(w, first_panel, end_panel, a, o);  // out of memory: slower, the same bits
  with_scales(w, [&]<ScaleKind s, bool m>() {
    switch (rows_per_tile(a.num_rows)) {
      case 4: multiply_panels_of<kKind, s, m, 4>(w, first_panel, end_panel, a, o, widened); break;
      case 8: multiply_panels_of<kKind, s, m, 8>(w, first_panel, end_panel, a, o, widened); break;
      default: multiply_panels_of<kKind, s, m, 16>(w, first_panel, end_panel, a, o, widened);
    }
  });
}

}  // namespace

int64_t tile_rows(int64_t num_rows) {
  if (num_rows <= kMaxRowsByFma) return 0;
  const int64_t rows = rows_per_tile(num_rows);
  return (num_rows + rows - 1) / rows * rows;
}

void matmul(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a, const MatmulOutput& o) {
  if (a.num_rows > kMaxRowsByFma && w.kind == PackKind::kNibble) {
    multiply_by_tiles<PackKind::kNibble>(w, first_panel, end_panel, a, o);
  } else if (a.num_rows > kMaxRowsByFma && w.kind == PackKind::kByte) {
    multiply_by_tiles<PackKind::kByte>(w, first_panel, end_panel, a, o);
  } else {
    matmul_by_fma(w, first_panel, end_panel, a, o);
  }
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
