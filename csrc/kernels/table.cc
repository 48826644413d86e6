// The kernels of one instruction set, gathered.
#include "kernels/kernels.h"

namespace octavo::OCTAVO_ISA_NAMESPACE {

#if defined(OCTAVO_ISA_AMX)
constexpr bool kWantsBf16 = true;
#else
constexpr bool kWantsBf16 = false;
#endif

const KernelTable kKernels = {
    .wants_bf16 = kWantsBf16,
    .round_row = round_row,
    .matmul = matmul,
    .rms_norm = rms_norm,
    .add = add_rows,
    .silu_and_mul = silu_and_mul,
    .rotate = rotate,
    .attention = attention,
    .merge_partials = merge_partials,
    .max_value = max_value,
    .sum_exp = sum_exp,
};

}  // namespace octavo::OCTAVO_ISA_NAMESPACE
