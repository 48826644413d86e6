// Matmul on packed matrices by tiles: what TDPBF16PS computes is the definition of kernels/packed_matrix.h.
//
//   codes ──widen──▶ B tiles (L1) ─┐
//                                  ├─▶ even + odd of a group, 16 rows × 16 features ──scale──▶ acc, in registers
//   activations ────▶ A tiles ─────┘
//
// A panel is widened once for all rows. The tile unit works on the next four groups while the vector unit scales the
// last four. Few rows are faster by fma: the tile unit takes as long for one row's loads as for sixteen.
#include "kernels/matmul_panel.h"
#include "kernels/tiles.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

constexpr int kGroupsAhead = 4;      // result tiles in flight
constexpr int kMaxRowsByFma = 2;     // up to here fused multiply-adds win
constexpr int64_t kGroupBytes = 16 * kTileBytes;  // of a widened group of 32

template <PackKind kKind, ScaleKind kScale, bool kMinima, int M>
class PanelByTiles {
 public:
  PanelByTiles(const PackedMatrix& w, const Activations& a, const MatmulOutput& o, uint8_t* widened)
      : w_(w), a_(a), o_(o), widened_(widened), sums_(w.group == 32 ? a.sums : a.sums16),
        code_bytes_(w.group * kPanel * code_bits(kKind) / 8) {}

  void widen(int64_t panel, int64_t first_group, int64_t end_group) {
    const uint8_t* codes = w_.panel(panel);
    for (int64_t g = first_group; g < end_group; ++g) {
      widen_group<kKind>(w_, codes + g * code_bytes_, w_.group, widened_ + g * kGroupBytes);
    }
  }

  // Rows row … row + M - 1 of the product; `fresh`: the panel is not widened yet.
  void multiply(int64_t panel, int64_t row, bool fresh) {
    const int64_t num_groups = w_.num_groups();
    F32x16 acc[M];
    for (int m = 0; m < M; ++m) acc[m] = zero_f32();
    int64_t g = 0;
    for (; g + kGroupsAhead <= num_groups; g += kGroupsAhead) {
      if (fresh) widen(panel, g, g + kGroupsAhead);
      four_products(row, g, products_[g / kGroupsAhead % 2]);
      if (g > 0) scale(panel, row, g - kGroupsAhead, kGroupsAhead, acc);
    }
    if (g > 0) scale(panel, row, g - kGroupsAhead, kGroupsAhead, acc);
    if (g < num_groups) {
      if (fresh) widen(panel, g, num_groups);
      for (int64_t i = g; i < num_groups; ++i) one_product(row, i, products_[g / kGroupsAhead % 2] + (i - g) * M * 16);
      scale(panel, row, g, static_cast<int>(num_groups - g), acc);
    }
    store_rows(panel, row, acc);
  }

 private:
  void four_products(int64_t row, int64_t g, float* products) {
    const uint16_t* a = a_.bf16 + row * a_.padded_columns + g * w_.group;
    const int64_t stride = a_.padded_columns * 2;
    const uint8_t* b = widened_ + g * kGroupBytes;
    _tile_zero(0);
    _tile_loadd(4, a, stride);
    _tile_loadd(6, b, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_zero(1);
    _tile_loadd(5, a + w_.group, stride);
    _tile_loadd(7, b + kGroupBytes, kTileBytes);
    _tile_dpbf16ps(1, 5, 7);
    _tile_zero(2);
    _tile_loadd(4, a + 2 * w_.group, stride);
    _tile_loadd(6, b + 2 * kGroupBytes, kTileBytes);
    _tile_dpbf16ps(2, 4, 6);
    _tile_zero(3);
    _tile_loadd(5, a + 3 * w_.group, stride);
    _tile_loadd(7, b + 3 * kGroupBytes, kTileBytes);
    _tile_dpbf16ps(3, 5, 7);
    _tile_stored(0, products, kTileBytes);
    _tile_stored(1, products + M * 16, kTileBytes);
    _tile_stored(2, products + 2 * M * 16, kTileBytes);
    _tile_stored(3, products + 3 * M * 16, kTileBytes);
  }

  void one_product(int64_t row, int64_t g, float* product) {
    _tile_zero(0);
    _tile_loadd(4, a_.bf16 + row * a_.padded_columns + g * w_.group, a_.padded_columns * 2);
    _tile_loadd(6, widened_ + g * kGroupBytes, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stored(0, product, kTileBytes);
  }

  OCTAVO_INLINE void scale(int64_t panel, int64_t row, int64_t first, int count, F32x16 (&acc)[M]) const {
    const uint8_t* base = w_.panel(panel);
    const float* product = products_[first / kGroupsAhead % 2];
    const int64_t num_groups = w_.num_groups();
    const float* sums = sums_ + row * num_groups + first;
    for (int i = 0; i < count; ++i, product += M * 16) {
      const F32x16 scales = load_scales<kScale>(base + w_.scales_offset, first + i);
      for (int m = 0; m < M; ++m) acc[m] = fma(scales, load(product + m * 16), acc[m]);
      if constexpr (kMinima) {
        const F32x16 minima = load_scales<kScale>(base + w_.minima_offset, first + i);
        for (int m = 0; m < M; ++m) acc[m] = fma(minima, broadcast(sums[m * num_groups + i]), acc[m]);
      }
    }
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
  uint8_t* const widened_;
  const float* const sums_;
  const int64_t code_bytes_;
  alignas(64) float products_[2][kGroupsAhead * M * 16];
};

// Where a thread widens panels: [groups][16 rows][64 bytes].
uint8_t* widening_space(int64_t num_groups) {
  struct Space {
    uint8_t* data = nullptr;
    int64_t bytes = 0;
    ~Space() { _mm_free(data); }
  };
  thread_local Space space;
  const int64_t bytes = num_groups * kGroupBytes;
  if (bytes > space.bytes) {
    _mm_free(space.data);
    space.data = static_cast<uint8_t*>(_mm_malloc(static_cast<size_t>(bytes), 64));
    space.bytes = space.data ? bytes : 0;
  }
  return space.data;
}

template <PackKind kKind, ScaleKind kScale, bool kMinima, int M>
void multiply_panels_of(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a,
                        const MatmulOutput& o, uint8_t* space) {
  configure_tiles(M, w.group);
  PanelByTiles<kKind, kScale, kMinima, M> product(w, a, o, space);
  for (int64_t panel = first_panel; panel < end_panel; ++panel) {
    for (int64_t row = 0; row < a.num_rows; row += M) product.multiply(panel, row, row == 0);
  }
}

template <PackKind kKind>
void multiply_by_tiles(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a,
                       const MatmulOutput& o) {
  uint8_t* space = widening_space(w.num_groups());
  if (!space) return matmul_by_fma(w, first_panel, end_panel, a, o);  // out of memory: slower, the same bits
  with_scales(w, [&]<ScaleKind s, bool m>() {
    if (a.num_rows <= 4) {
      multiply_panels_of<kKind, s, m, 4>(w, first_panel, end_panel, a, o, space);
    } else if (a.num_rows <= 8) {
      multiply_panels_of<kKind, s, m, 8>(w, first_panel, end_panel, a, o, space);
    } else {
      multiply_panels_of<kKind, s, m, 16>(w, first_panel, end_panel, a, o, space);
    }
  });
}

}  // namespace

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
