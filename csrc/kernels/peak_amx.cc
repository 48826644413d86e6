// Independent tile products with nothing else to do: the peak that a kernel's speed is compared with.
#include "kernels/kernels.h"
#include "kernels/tiles.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

double burn(int64_t steps) {
  configure_tiles(16, kTileBytes);
  for (int64_t step = 0; step < steps; ++step) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  return 2.0 * 4 * 16 * 16 * 32 * static_cast<double>(steps);
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
