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

// Where a thread widens a panel: its groups, then its runs of minima.
struct WidenedPanel {
  uint8_t* groups;
  uint8_t* minima;
};

template <PackKind kKind, int kGroup, ScaleKind kScale, bool kMinima, int M>
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
        const uint16_t* a = a_.tiles.data + row * a_.tiles.padded_columns;
        const uint8_t* b = widened_.groups;
        unroll<kInFlight>([&](auto tile) __attribute__((always_inline)) {
          const bool pending = previous.base && last_block_ + tile < num_groups_;
          if (pending) collect<tile>();
          if (tile < num_groups_) start<tile>(a, b);
          if (pending) scale<tile>(scales_of(previous, last_block_), acc);
        });
        if (previous.base) finish(previous, acc);
        unroll<M>([&](auto m) { acc[m] = zero_f32(); });
        previous = place;

        const uint16_t* sums = kMinima ? sums_.data + row * sums_.padded_columns : nullptr;
        int64_t run = 0;
        if constexpr (kMinima) _tile_zero(6);
        for (int64_t g = kInFlight; g <= last_block_; g += kInFlight) {
          a += kInFlight * kGroupElements;
          b += kInFlight * kGroupBytes;
          if (fresh) widen(place, g + kInFlight, g + 2 * kInFlight);
          const uint8_t* scales = scales_of(place, g - kInFlight);
          if (g + kInFlight <= num_groups_) {
            unroll<kInFlight>([&](auto tile) __attribute__((always_inline)) {
              collect<tile>();
              start<tile>(a, b);
              scale<tile>(scales, acc);
            });
          } else {
            unroll<kInFlight>([&](auto tile) __attribute__((always_inline)) {
              collect<tile>();
              if (g + tile < num_groups_) start<tile>(a, b);
              scale<tile>(scales, acc);
            });
          }
          if constexpr (kMinima) {
            if (run < num_sum_runs_) gather_minima(sums, run++);
          }
        }
        if constexpr (kMinima) {
          while (run < num_sum_runs_) gather_minima(sums, run++);
        }
      }
    }
    unroll<kInFlight>([&](auto tile) __attribute__((always_inline)) {
      if (last_block_ + tile >= num_groups_) return;
      collect<tile>();
      scale<tile>(scales_of(previous, last_block_), acc);
    });
    finish(previous, acc);
  }

 private:
  // Elements of the left operand, and bytes of the widened right one, from a group's tile to the next group's: with
  // groups of 16, two share a tile of the left operand, side by side.
  static constexpr int64_t kGroupElements = M * kGroup;
  static constexpr int64_t kGroupBytes = kGroup / 2 * kTileBytes;
  static constexpr int64_t kScaleBytes = kPanel * (kScale == ScaleKind::kF16 ? 2 : 4);

  struct Place {
    const uint8_t* base;  // of the panel
    int64_t panel, row;
  };

  void widen(const Place& place, int64_t first, int64_t end) const {
    constexpr int64_t code_bytes = kGroup * kPanel * code_bits(kKind) / 8;
    for (int64_t g = first; g < end && g < num_groups_; ++g) {
      widen_group<kKind>(w_, place.base + g * code_bytes, kGroup, widened_.groups + g * kGroupBytes);
    }
  }

  // Two pair rows per group: (high, high) and (low, low).
  void widen_minima(const Place& place) const {
    uint8_t* b = widened_.minima;
    for (int64_t g = 0; g < num_sum_runs_ * sum_run(kGroup); ++g, b += 2 * kTileBytes) {
      const F32x16 minima = g < num_groups_ ? load_scales<kScale>(place.base + w_.minima_offset, g) : zero_f32();
      store_pairs(b, high_part(minima), high_part(minima));
      store_pairs(b + kTileBytes, low_part<kScale>(minima), low_part<kScale>(minima));
    }
  }

  const uint8_t* scales_of(const Place& place, int64_t g) const { return place.base + w_.scales_offset + g * kScaleBytes; }

  // The left operand's tile of group `i` after the one at `a`, a group whose number is even; its rows are 64 bytes apart.
  static const uint16_t* group_tile(const uint16_t* a, int64_t i) {
    return kGroup == 32 ? a + i * M * 32 : a + i / 2 * M * 32 + i % 2 * 16;
  }

  // Starts the product of group kTile after those at a and b. The intrinsics paste tile numbers into assembly, so these
  // must be literals.
  template <int kTile>
  static OCTAVO_INLINE void start(const uint16_t* a, const uint8_t* b) {
#define OCTAVO_START(tile)                             \
  if constexpr (kTile == tile) {                       \
    _tile_zero(tile);                                  \
    _tile_loadd(4, group_tile(a, tile), kTileBytes);   \
    _tile_loadd(5, b + tile * kGroupBytes, kTileBytes); \
    _tile_dpbf16ps(tile, 4, 5);                        \
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

  // Adds the product there to the sums, with the scales of group kTile after those at `scales`.
  template <int kTile>
  OCTAVO_INLINE void scale(const uint8_t* scales, F32x16 (&acc)[M]) const {
    const float* product = products_[kTile];
    const F32x16 factor = load_scales<kScale>(scales, kTile);
    unroll<M>([&](auto m) { acc[m] = fma(factor, load(product + m * 16), acc[m]); });
  }

  OCTAVO_INLINE void gather_minima(const uint16_t* sums, int64_t run) const {
    _tile_loadd(4, group_tile(sums, run), kTileBytes);
    _tile_loadd(5, widened_.minima + run * kGroupBytes, kTileBytes);
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
  const int64_t per_group = w.group / 2 * kTileBytes, group_bytes = w.num_groups() * per_group;
  const int64_t bytes = group_bytes + w.num_sum_runs() * per_group;
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
  if (w.group == 32) {
    ProductByTiles<kKind, 32, kScale, kMinima, M>(w, a, o, widened).run(first_panel, end_panel);
  } else if constexpr (kScale == ScaleKind::kF32) {  // the types with groups of 16 have scales that are products
    ProductByTiles<kKind, 16, kScale, kMinima, M>(w, a, o, widened).run(first_panel, end_panel);
  }
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
