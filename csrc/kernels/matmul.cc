// Matmul on packed matrices by vector instructions, the definition of kernels/packed_matrix.h spelled out.
#include "kernels/matmul_panel.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

int tile_rows(int64_t) { return 0; }

void matmul(const PackedMatrix& w, int64_t first_panel, int64_t end_panel, const Activations& a, const MatmulOutput& o) {
  matmul_by_vectors(w, first_panel, end_panel, a, o);
}

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
