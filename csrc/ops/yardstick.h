// What the machine can do at most, measured: the yardsticks that benchmarks print beside their own figures.
#pragma once

#include "ops/runtime.h"

namespace octavo {

// Bytes per second at which all threads together read `bytes` of memory; the best of several turns.
double streaming_bytes_per_s(Runtime& runtime, size_t bytes);

// Multiply-adds per second, times two, of all threads: by tiles if the instruction set has them, else by vector fma.
double peak_flops(Runtime& runtime);

}  // namespace octavo
