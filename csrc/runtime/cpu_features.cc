#include "runtime/cpu_features.h"

#include <cstdlib>

#include "runtime/refusal.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {
namespace {

#if defined(__x86_64__)

// Bits of XCR0: which register files the operating system saves.
constexpr unsigned long long kXcr0Avx = 0x6, kXcr0Avx512 = 0xe6, kXcr0Amx = 0x60000;

unsigned long long read_xcr0() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<unsigned long long>(high) << 32) | low;
}

// Linux hands out the 8 KiB of tile registers only on request, once per process.
bool request_amx_permission() {
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

std::vector<Isa> detect() {
  std::vector<Isa> isas{Isa::kScalar};
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return isas;
  const bool osxsave = c & bit_OSXSAVE, fma = c & bit_FMA, avx = c & bit_AVX, f16c = c & bit_F16C;
  if (!osxsave || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return isas;
  const unsigned long long xcr0 = read_xcr0();

  const bool avx2 = (b & bit_AVX2) && avx && fma && f16c && (xcr0 & kXcr0Avx) == kXcr0Avx;
  if (!avx2) return isas;
  isas.push_back(Isa::kAvx2);
#if defined(OCTAVO_EMULATE)
  isas.insert(isas.end(), {Isa::kAvx512, Isa::kAmx});
  return isas;
#endif

  const unsigned wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  const bool avx512 = (b & wanted) == wanted && (c & bit_AVX512VNNI) && (xcr0 & kXcr0Avx512) == kXcr0Avx512;
  if (!avx512) return isas;
  isas.push_back(Isa::kAvx512);

  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  const bool tiles = (d & kAmxBf16) && (d & kAmxTile) && (d & kAmxInt8) && (xcr0 & kXcr0Amx) == kXcr0Amx;
  if (tiles && request_amx_permission()) isas.push_back(Isa::kAmx);
  return isas;
}

#elif defined(__aarch64__)

std::vector<Isa> detect() { return {Isa::kScalar, Isa::kNeon}; }  // no AArch64 is without

#else

std::vector<Isa> detect() { return {Isa::kScalar}; }

#endif

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAmx: return "amx";
    case Isa::kNeon: return "neon";
  }
  return "unknown";
}

const std::vector<Isa>& available_isas() {
  static const std::vector<Isa> isas = detect();
  return isas;
}

Isa require_isa(const std::string& name) {
  for (Isa isa : available_isas()) {
    if (name == isa_name(isa)) return isa;
  }
  std::string have;
  for (Isa isa : available_isas()) have += std::string(have.empty() ? "" : ", ") + isa_name(isa);
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx, Isa::kNeon}) {
    if (name == isa_name(isa)) {
      throw Refusal("OCTAVO_ISA=" + name + ": this machine lacks that instruction set; it has " + have);
    }
  }
  throw Refusal("OCTAVO_ISA=" + name + " is unknown; this machine has " + have);
}

Isa choose_isa() {
  const char* forced = std::getenv("OCTAVO_ISA");
  if (forced && *forced) return require_isa(forced);
  return available_isas().back();
}

}  // namespace octavo
