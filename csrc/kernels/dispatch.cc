// From an instruction set to its kernels.
#include "kernels/kernel_table.h"

namespace octavo {

const KernelTable& kernel_table(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kAmx: return isa_amx::kKernels;
    case Isa::kAvx512: return isa_avx512::kKernels;
    case Isa::kAvx2: return isa_avx2::kKernels;
    case Isa::kScalar:
    case Isa::kNeon: break;
  }
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return isa_neon::kKernels;
#endif
  (void)isa;
  return isa_scalar::kKernels;
}

}  // namespace octavo
