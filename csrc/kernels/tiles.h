// The tile unit (AMX): its configuration.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace octavo::OCTAVO_ISA_NAMESPACE {

constexpr int kTileBytes = 64;  // per row

// Tiles 4 and 6 are left operands [rows, depth_bytes], tile 5 is the right one [depth_bytes / 4, 16 columns of 4 bytes]
// (the processor renames them, so one of each is enough), all others results [rows, 16 lanes of 32 bits].
// Loaded at the start of every kernel call: another library may have used the tiles of this thread in between.
inline void configure_tiles(int rows, int depth_bytes) {
  struct alignas(64) Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } config = {};
  config.palette = 1;
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = static_cast<uint16_t>(t == 4 || t == 6 ? depth_bytes : kTileBytes);
    config.rows[t] = static_cast<uint8_t>(t == 5 ? depth_bytes / 4 : rows);
  }
  // GCC 12 does not know that the instruction reads the struct, and would drop the stores above.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
