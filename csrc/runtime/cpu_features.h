// Which instruction sets this machine has, and which one the kernels use.
#pragma once

#include <string>
#include <vector>

namespace octavo {

// Those of one processor family in ascending order: each needs what those before it need.
enum class Isa { kScalar, kAvx2, kAvx512, kAmx, kNeon };

const char* isa_name(Isa isa);

// All that the processor, the operating system and (for AMX) the kernel's permission allow, scalar first.
const std::vector<Isa>& available_isas();

// The isa of that name. Throws Refusal if the name is unknown or the machine lacks it.
Isa require_isa(const std::string& name);

// The best one, or what the environment variable OCTAVO_ISA asks for (then it throws as require_isa does).
Isa choose_isa();

}  // namespace octavo
