// Matmul on packed matrices by tiles: what TDPBF16PS computes is the definition of kernels/packed_matrix.h.
//
//   codes ──widen──▶ B tiles (L1) ─┐
//                                  ├─▶ even + odd of a group, M rows × 16 features ──scale──▶ acc, in registers
//   activations ────▶ A tiles ─────┘
//
// A panel is widened once for all rows. The work is one stream of steps over panels, rows and groups. Four products are in
// flight: a step stores the product that was started four steps ago and scales it while its tile works on the next one,
// so that the tile unit and the vector unit overlap, also from one block of rows to the next.
// One or two rows are faster by fma: the tile unit takes as long for their loads as for sixteen rows.
#include "kernels/matmul_panel.h"
#include "kernels/tiles.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

constexpr int kInFlight = 4;                      // result tiles
constexpr int kMaxRowsByFma = 2;                  // up to here fused multiply-adds win
constexpr int64_t kGroupBytes = 16 * kTileBytes;  // of a widened group of 32, and of a widened run of minima

// Where a thread widens a panel: its groups, then its runs of minima.
struct WidenedPanel {
  uint8_t* groups;
  uint8_t* minima;
};

template <PackKind kKind, ScaleKind kScale, bool kMinima, int M>
class ProductByTiles {
 public:
  ProductByTiles(const PackedMatrix& w, const Activations& a, const MatmulOutput& o, const WidenedPanel& widened)
      : w_(w), a_(a), o_(o), widened_(widened), num_groups_(w.num_groups()),
        last_block_((num_groups_ - 1) / kInFlight * kInFlight), sums_((w.group == 32 ? a.sums : a.sums16).tiles),
        num_sum_runs_(w.num_sum_runs()) {}

  void run(int64_t first_panel, int64_t end_panel) {
    F32x16 acc[M];
    Place previous{};  // whose last products are in flight
    for (int64_t panel = first_panel; panel < end_panel; ++panel) {
      for (int64_t row = 0; row < a_.num_rows; row += M) {
        const Place place{w_.panel(panel), panel, row};
        const bool fresh = row == 0;
        if (fresh) {
          widen(place, 0, 2 * kInFlight);
          if constexpr (kMinima) widen_minima(place);
        }
        unroll<kInFlight>([&](auto tile) __attribute__((always_inline)) {
          const bool pending = previous.base && last_block_ + tile < num_groups_;
          if (pending) collect<tile>();
          if (tile < num_groups_) start<tile>(place, tile);
          if (pending) scale<tile>(previous, last_block_ + tile, acc);
        });
        if (previous.base) finish(previous, acc);
        unroll<M>([&](auto m) { acc[m] = zero_f32(); });
        int64_t run = 0;
        if constexpr (kMinima) _tile_zero(6);
        for (int64_t g = kInFlight; g <= last_block_; g += kInFlight) {
          if (fresh) widen(place, g + kInFlight, g + 2 * kInFlight);
          unroll<kInFlight>([&](auto tile) __attribute__((always_inline)) {
            collect<tile>();
            if (g + tile < num_groups_) start<tile>(place, g + tile);
            scale<tile>(place, g - kInFlight + tile, acc);
          });
          if constexpr (kMinima) {
            if (run < num_sum_runs_) gather_minima(row, run++);
          }
        }
        if constexpr (kMinima) {
          while (run < num_sum_runs_) gather_minima(row, run++);
        }
        previous = place;
      }
    }
    unroll<kInFlight>([&](auto tile) __attribute__((always_inline)) {
      if (last_block_ + tile >= num_groups_) return;
      collect<tile>();
      scale<tile>(previous, last_block_ + tile, acc);
    });
    finish(previous, acc);
  }

 private:
  struct Place {
    const uint8_t* base;  // of the panel
    int64_t panel, row;
  };

  void widen(const Place& place, int64_t first, int64_t end) const {
    const int64_t code_bytes = w_.group * kPanel * code_bits(kKind) / 8;
    for (int64_t g = first; g < end && g < num_groups_; ++g) {
      widen_group<kKind>(w_, place.base + g * code_bytes, w_.group, widened_.groups + g * kGroupBytes);
    }
  }

  // Two pair rows per group: (high, high) and (low, low).
  void widen_minima(const Place& place) const {
    uint8_t* b = widened_.minima;
    for (int64_t g = 0; g < w_.num_sum_runs() * sum_run(w_.group); ++g, b += 2 * kTileBytes) {
      const F32x16 minima = g < num_groups_ ? load_scales<kScale>(place.base + w_.minima_offset, g) : zero_f32();
      store_pairs(b, high_part(minima), high_part(minima));
      store_pairs(b + kTileBytes, low_part(minima), low_part(minima));
    }
  }

  // A tile's worth of columns from `column` on; its rows are 64 bytes apart.
  static const uint16_t* columns(const TiledRows& x, int64_t row, int64_t column) {
    return x.data + row * x.padded_columns + column / 32 * (M * 32) + column % 32;
  }

  // Starts the product of a group. The intrinsics paste tile numbers into assembly, so these must be literals.
  template <int kTile>
  OCTAVO_INLINE void start(const Place& place, int64_t g) const {
    const uint16_t* a = columns(a_.tiles, place.row, g * w_.group);
    const uint8_t* b = widened_.groups + g * kGroupBytes;
#define OCTAVO_START(tile)          \
  if constexpr (kTile == tile) {    \
    _tile_zero(tile);               \
    _tile_loadd(4, a, kTileBytes);  \
    _tile_loadd(5, b, kTileBytes);  \
    _tile_dpbf16ps(tile, 4, 5);     \
  }
    OCTAVO_START(0)
    OCTAVO_START(1)
    OCTAVO_START(2)
    OCTAVO_START(3)
#undef OCTAVO_START
  }

  // Moves a finished product from its tile to memory.
  template <int kTile>
  OCTAVO_INLINE void collect() {
    float* product = products_[kTile];
    if constexpr (kTile == 0) _tile_stored(0, product, kTileBytes);
    if constexpr (kTile == 1) _tile_stored(1, product, kTileBytes);
    if constexpr (kTile == 2) _tile_stored(2, product, kTileBytes);
    if constexpr (kTile == 3) _tile_stored(3, product, kTileBytes);
  }

  // Adds the product there to the sums.
  template <int kTile>
  OCTAVO_INLINE void scale(const Place& place, int64_t g, F32x16 (&acc)[M]) const {
    const float* product = products_[kTile];
    const F32x16 scales = load_scales<kScale>(place.base + w_.scales_offset, g);
    unroll<M>([&](auto m) { acc[m] = fma(scales, load(product + m * 16), acc[m]); });
  }

  OCTAVO_INLINE void gather_minima(int64_t row, int64_t run) const {
    _tile_loadd(4, columns(sums_, row, run * w_.group), kTileBytes);
    _tile_loadd(5, widened_.minima + run * w_.group / 2 * kTileBytes, kTileBytes);
    _tile_dpbf16ps(6, 4, 5);
  }

  OCTAVO_INLINE void finish(const Place& place, F32x16 (&acc)[M]) {
    if constexpr (kMinima) {
      _tile_stored(6, minima_, kTileBytes);
      unroll<M>([&](auto m) { acc[m] = add(acc[m], load(minima_ + m * 16)); });
    }
    const int64_t column = place.panel * kPanel, left = w_.num_features - column;
    const int lanes = left >= kPanel ? kPanel : static_cast<int>(left);
    const F32x16 bias = o_.bias ? load_partial(o_.bias + column, lanes) : zero_f32();
    float* out = o_.out + place.row * o_.stride + column;
    unroll<M>([&](auto m) {
      if (place.row + m < a_.num_rows) store_partial(out + m * o_.stride, lanes, o_.bias ? add(acc[m], bias) : acc[m]);
    });
  }

  const PackedMatrix& w_;
  const Activations& a_;
  const MatmulOutput& o_;
  const WidenedPanel widened_;
  const int64_t num_groups_, last_block_;  // groups, and the first one of the last four
  const TiledRows sums_;
  const int64_t num_sum_runs_;
  alignas(64) float products_[kInFlight][M * 16];
  alignas(64) float minima_[M * 16];
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
  ProductByTiles<kKind, kScale, kMinima, M>(w, a, o, widened).run(first_panel, end_panel);
}

template <PackKind kKind>
void multiply_by_tiles(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a,
                       const MatmulOutput& o) {
  const WidenedPanel widened = widening_space(w);
  if (!widened.groups) return matmul_by_fma(w, first_panel, end_panel, a, o);  // out of memory: slower, the same bits
  with_scales(w, [&]<ScaleKind s, bool m>() {
    switch (a.tiles.rows_per_tile) {
      case 4: multiply_panels_of<kKind, s, m, 4>(w, first_panel, end_panel, a, o, widened); break;
      case 8: multiply_panels_of<kKind, s, m, 8>(w, first_panel, end_panel, a, o, widened); break;
      default: multiply_panels_of<kKind, s, m, 16>(w, first_panel, end_panel, a, o, widened);
    }
  });
}

}  // namespace

int tile_rows(int64_t num_rows) { return num_rows <= kMaxRowsByFma ? 0 : num_rows <= 4 ? 4 : num_rows <= 8 ? 8 : 16; }

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
