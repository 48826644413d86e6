// The kernels of one instruction set, gathered.
#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

const KernelTable kKernels = {
    .tile_rows = tile_rows,
    .round_to_whole = round_to_whole,
    .matmul = matmul,
    .rms_norm = rms_norm,
    .add = add_rows,
    .silu_and_mul = silu_and_mul,
    .rotate = rotate,
    .attention = attention,
    .merge_partials = merge_partials,
    .max_value = max_value,
    .sum_exp = sum_exp,
    .burn = burn,
};

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
