// The tile unit (AMX) as its manual describes it, for machines without one: eight tiles per thread, their configuration,
// and the products of bytes. What the processor refuses, a product of tiles that do not fit, ends the program here, too.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulated {

struct Tile {
  int rows = 0, row_bytes = 0;
  uint8_t data[16][64] = {};
};
inline thread_local Tile tiles[8];

inline void tile_loadconfig(const void* config) {
  const uint8_t* bytes = static_cast<const uint8_t*>(config);
  for (int t = 0; t < 8; ++t) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, bytes + 16 + 2 * t, sizeof row_bytes);
    tiles[t] = Tile{};
    tiles[t].row_bytes = row_bytes;
    tiles[t].rows = bytes[48 + t];
  }
}
inline void tile_loadd(int t, const void* base, int64_t stride) {
  Tile& tile = tiles[t];
  std::memset(tile.data, 0, sizeof tile.data);
  for (int m = 0; m < tile.rows; ++m) {
    std::memcpy(tile.data[m], static_cast<const uint8_t*>(base) + m * stride, static_cast<size_t>(tile.row_bytes));
  }
}
inline void tile_stored(int t, void* base, int64_t stride) {
  const Tile& tile = tiles[t];
  for (int m = 0; m < tile.rows; ++m) {
    std::memcpy(static_cast<uint8_t*>(base) + m * stride, tile.data[m], static_cast<size_t>(tile.row_bytes));
  }
}
inline void tile_zero(int t) { std::memset(tiles[t].data, 0, sizeof tiles[t].data); }

// c[m][n] += Σ a[m][k][i] * b[k][n][i] over quadruples i of bytes, of types A and B.
template <class A, class B>
void tile_dot_bytes(int c, int a, int b) {
  Tile &sums = tiles[c], &left = tiles[a], &right = tiles[b];
  if (sums.rows != left.rows || sums.row_bytes != right.row_bytes || left.row_bytes != right.rows * 4 || !sums.rows) {
    std::fprintf(stderr, "tiles %d, %d and %d do not fit\n", c, a, b);
    std::abort();
  }
  for (int m = 0; m < sums.rows; ++m) {
    for (int n = 0; n < sums.row_bytes / 4; ++n) {
      int32_t sum;
      std::memcpy(&sum, sums.data[m] + 4 * n, sizeof sum);
      for (int k = 0; k < right.rows; ++k) {
        for (int i = 0; i < 4; ++i) {
          sum += static_cast<int32_t>(static_cast<A>(left.data[m][4 * k + i])) * static_cast<B>(right.data[k][4 * n + i]);
        }
      }
      std::memcpy(sums.data[m] + 4 * n, &sum, sizeof sum);
    }
  }
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::tile_loadconfig
#define _tile_loadd emulated::tile_loadd
#define _tile_stored emulated::tile_stored
#define _tile_zero emulated::tile_zero
#define _tile_dpbssd (emulated::tile_dot_bytes<int8_t, int8_t>)
#define _tile_dpbsud (emulated::tile_dot_bytes<int8_t, uint8_t>)
#define _tile_dpbusd (emulated::tile_dot_bytes<uint8_t, int8_t>)
#define _tile_dpbuud (emulated::tile_dot_bytes<uint8_t, uint8_t>)
#define _tile_dpbf16ps(c, a, b) ((void)(c))  // only the yardstick of the peak runs it
