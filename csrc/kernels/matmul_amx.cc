// Matmul with codes by tiles: the integer sums of kernels/packed_matrix.h, sixteen rows × sixteen features at a time.
//
//   codes ──widen to bytes──▶ B tiles (L1) ─┐
//                                           ├─▶ high and low sums of a group, M rows × 16 features ──scale──▶ acc
//   whole numbers, cut into bytes ──▶ A ────┘
//
// A whole number is 256 high + low, so its sum with the codes is two products of bytes. Bytes of codes lie in memory as a
// tile wants them; nibbles are widened once per panel for all rows. The work is one stream of steps over panels, rows and
// groups, with two steps in flight: a step stores the sums that were started two steps ago and scales them while its
// tiles work on the next ones, so that the tile unit and the vector unit overlap, also from one block of rows to the next.
// One or two rows are faster by vectors: the tile unit takes as long for their loads as for sixteen rows.
#include "kernels/matmul_panel.h"
#include "kernels/tiles.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {
namespace {

constexpr int kInFlight = 2;           // steps
constexpr int kWidenedAhead = 4;       // groups: long enough for their stores to reach L1
constexpr int kMaxRowsByVectors = 2;

enum class TileCodes { kNibble, kTable, kByte };

template <class Arithmetic, TileCodes kCodes, int M>
class ProductByTiles {
 public:
  // `widened` has room for the bytes of a panel's codes.
  ProductByTiles(const PackedMatrix& w, const Activations& a, const MatmulOutput& o, uint8_t* widened)
      : arithmetic_(w, a), w_(w), a_(a), o_(o), table_(repeat_bytes(w.values)), widened_(widened), num_groups_(w.num_groups()) {}

  void run(int64_t first_panel, int64_t end_panel) {
    const int64_t blocks = (a_.num_rows + M - 1) / M, steps = (end_panel - first_panel) * blocks * num_groups_;
    Place started{first_panel, 0, 0}, finished = started;
    unroll<M>([&](auto m) { acc_[m] = zero_f32(); });
    for (int64_t step = 0; step < steps + kInFlight; step += kInFlight) {
      unroll<kInFlight>([&](auto i) __attribute__((always_inline)) {
        const bool pending = step > 0 && step - kInFlight + i < steps;
        if (pending) collect<i>();
        if (step + i < steps) {
          widen(started);
          start<i>(left_of(started), right_of(started));
          advance(started);
        }
        if (pending) {
          scale<i>(finished);
          if (finished.group + 1 == num_groups_) write(finished);
          advance(finished);
        }
      });
    }
  }

 private:
  static constexpr int kGroup = Arithmetic::kGroup;
  static constexpr int64_t kGroupBytes = kGroup * kPanel;  // of the right operand

  struct Place {
    int64_t panel, row, group;
  };

  OCTAVO_INLINE void advance(Place& place) const {
    if (++place.group < num_groups_) return;
    place.group = 0;
    if ((place.row += M) < a_.num_rows) return;
    place.row = 0;
    ++place.panel;
  }

  // Groups of nibbles to bytes, while the first rows go by.
  OCTAVO_INLINE void widen(const Place& place) const {
    if (kCodes == TileCodes::kByte || place.row > 0) return;
    if (place.group == 0) {
      for (int64_t g = 0; g < kWidenedAhead && g < num_groups_; ++g) widen_group(place.panel, g);
    }
    if (place.group + kWidenedAhead < num_groups_) widen_group(place.panel, place.group + kWidenedAhead);
  }

  OCTAVO_INLINE void widen_group(int64_t panel, int64_t group) const {
    const uint8_t* p = w_.panel(panel) + group * kGroupBytes / 2;
    uint8_t* target = widened_ + group * kGroupBytes;
    for (int k = 0; k < kGroup; k += 8, p += 64, target += 128) {
      const U32x16 x = load_u32(p), nibble = broadcast_u32(0x0f0f0f0f);
      store_u32(target, value(and_u32(x, nibble)));
      store_u32(target + 64, value(and_u32(shift_right<4>(x), nibble)));
    }
  }
  OCTAVO_INLINE U32x16 value(U32x16 codes) const {
    return kCodes == TileCodes::kTable ? lookup_bytes(table_, codes) : codes;
  }

  // High bytes; the low ones are 32 bytes on. Rows are 64 bytes apart; two groups of 16 lie side by side.
  OCTAVO_INLINE const uint8_t* left_of(const Place& place) const {
    const int64_t column = place.group * kGroup;
    return a_.tiles.row(place.row) + column / 32 * a_.tiles.step() + column % 32;
  }
  OCTAVO_INLINE const uint8_t* right_of(const Place& place) const {
    return (kCodes == TileCodes::kByte ? w_.panel(place.panel) : widened_) + place.group * kGroupBytes;
  }

  // Starts the two products of step i of those in flight. The intrinsics paste tile numbers into assembly, so these must
  // be literals.
  template <int i>
  static OCTAVO_INLINE void start(const uint8_t* a, const uint8_t* b) {
    _tile_loadd(4, a, kTileBytes);
    _tile_loadd(6, a + 32, kTileBytes);
    _tile_loadd(5, b, kTileBytes);
#define OCTAVO_START(high, low)       \
  _tile_zero(high);                   \
  _tile_zero(low);                    \
  if (kCodes == TileCodes::kByte) {   \
    _tile_dpbssd(high, 4, 5);         \
    _tile_dpbusd(low, 6, 5);          \
  } else {                            \
    _tile_dpbsud(high, 4, 5);         \
    _tile_dpbuud(low, 6, 5);          \
  }
    if constexpr (i == 0) {
      OCTAVO_START(0, 1)
    } else {
      OCTAVO_START(2, 3)
    }
#undef OCTAVO_START
  }

  // Moves finished sums from their tiles to memory.
  template <int i>
  OCTAVO_INLINE void collect() {
    if constexpr (i == 0) {
      _tile_stored(0, high_[0], kTileBytes);
      _tile_stored(1, low_[0], kTileBytes);
    } else {
      _tile_stored(2, high_[1], kTileBytes);
      _tile_stored(3, low_[1], kTileBytes);
    }
  }

  // Adds the sums there to the result.
  template <int i>
  OCTAVO_INLINE void scale(const Place& place) {
    const auto factors = arithmetic_.factors(w_.panel(place.panel), place.group);
    unroll<M>([&](auto m) __attribute__((always_inline)) {
      const U32x16 high = load_u32(high_[i] + m * 16), low = load_u32(low_[i] + m * 16);
      const U32x16 sum = add_u32(add_u32(shift_left<8>(high), low), arithmetic_.start(place.row + m, place.group));
      acc_[m] = arithmetic_.finish(sum, factors, place.row + m, place.group, acc_[m]);
    });
  }

  OCTAVO_INLINE void write(const Place& place) {
    unroll<M>([&](auto m) __attribute__((always_inline)) {
      if (place.row + m < a_.num_rows) write_row(w_, place.panel, place.row + m, acc_[m], o_);
      acc_[m] = zero_f32();
    });
  }

  const Arithmetic arithmetic_;
  const PackedMatrix& w_;
  const Activations& a_;
  const MatmulOutput& o_;
  const U32x16 table_;
  uint8_t* const widened_;
  const int64_t num_groups_;
  F32x16 acc_[M];
  alignas(64) int32_t high_[kInFlight][M * 16], low_[kInFlight][M * 16];
};

// Memory of this thread for a panel's codes as bytes; null if there is none.
uint8_t* widening_space(const PackedMatrix& w) {
  struct Space {
    uint8_t* data = nullptr;
    int64_t bytes = 0;
    ~Space() { _mm_free(data); }
  };
  thread_local Space space;
  const int64_t bytes = w.padded_columns * kPanel;
  if (bytes > space.bytes) {
    _mm_free(space.data);
    space.data = static_cast<uint8_t*>(_mm_malloc(static_cast<size_t>(bytes), 64));
    space.bytes = space.data ? bytes : 0;
  }
  return space.data;
}

template <class Arithmetic, TileCodes kCodes>
void multiply_by_tiles(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a,
                       const MatmulOutput& o, uint8_t* widened) {
  configure_tiles(a.tiles.rows_per_tile, Arithmetic::kGroup);
  switch (a.tiles.rows_per_tile) {
    case 4: return ProductByTiles<Arithmetic, kCodes, 4>(w, a, o, widened).run(first_panel, end_panel);
    case 8: return ProductByTiles<Arithmetic, kCodes, 8>(w, a, o, widened).run(first_panel, end_panel);
    default: return ProductByTiles<Arithmetic, kCodes, 16>(w, a, o, widened).run(first_panel, end_panel);
  }
}

}  // namespace

int tile_rows(int64_t num_rows) { return num_rows <= kMaxRowsByVectors ? 0 : num_rows <= 4 ? 4 : num_rows <= 8 ? 8 : 16; }

void matmul(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a, const MatmulOutput& o) {
  uint8_t* const widened = w.has_codes() && a.tiles.data ? widening_space(w) : nullptr;
  if (!widened) return matmul_by_vectors(w, first_panel, end_panel, a, o);  // out of memory: slower, the same bits
  with_code_arithmetic(w, [&]<ScaleKind s, Shift shift, int g>() {
    using Arithmetic = CodeArithmetic<s, shift, g>;
    if (w.kind == PackKind::kByte) {
      multiply_by_tiles<Arithmetic, TileCodes::kByte>(w, first_panel, end_panel, a, o, widened);
    } else if (stand_for_themselves(w.values)) {
      multiply_by_tiles<Arithmetic, TileCodes::kNibble>(w, first_panel, end_panel, a, o, widened);
    } else {
      multiply_by_tiles<Arithmetic, TileCodes::kTable>(w, first_panel, end_panel, a, o, widened);
    }
  });
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
