// What this machine can do at most, measured by loops that do nothing else. One call is one thread's part: it runs for
// about `seconds` and returns what it did per second. Built by yardsticks.py with -march=native.
#include <time.h>

#include <cstdint>
#include <cstring>

#if defined(__AMX_BF16__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int64_t Words __attribute__((vector_size(kLanes * 4)));

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

// Calls `work`, which returns units of work done, until the time is over.
template <typename Work>
double rate(double seconds, Work work) {
  double done = 0, began = now(), elapsed;
  do {
    done += work();
    elapsed = now() - began;
  } while (elapsed < seconds);
  return done / elapsed;
}

volatile int64_t sink;  // keeps results alive

}  // namespace

extern "C" {

// Bytes per second of reading `data` from one end to the other, again and again.
double stream_read(const void* data, int64_t num_bytes, double seconds) {
  const Words* words = static_cast<const Words*>(data);
  const int64_t num_words = num_bytes / static_cast<int64_t>(sizeof(Words)) / 8 * 8;
  return rate(seconds, [&] {
    Words sums[8] = {};
    for (int64_t i = 0; i < num_words; i += 8)
      for (int j = 0; j < 8; ++j) sums[j] ^= words[i + j];
    for (int j = 1; j < 8; ++j) sums[0] ^= sums[j];
    sink = sums[0][0];
    return static_cast<double>(num_words) * sizeof(Words);
  });
}

// Floating-point operations per second of fp32 multiply-adds on registers.
double fma_peak(double seconds) {
  return rate(seconds, [] {
    constexpr int kChains = 10, kSteps = 1 << 16;
    Floats chains[kChains] = {}, factor, addend;
    std::memset(&factor, 0, sizeof factor);
    addend = factor + 1e-3f;
    asm volatile("" : "+x"(factor), "+x"(addend));  // not constants, as far as the compiler knows
    for (int step = 0; step < kSteps; ++step)
      for (int j = 0; j < kChains; ++j) chains[j] = chains[j] * factor + addend;
    for (int j = 1; j < kChains; ++j) chains[0] += chains[j];
    sink = static_cast<int64_t>(chains[0][0]);
    return 2.0 * kChains * kLanes * kSteps;
  });
}

// Floating-point operations per second of bf16 tile products whose operands come from L1; 0: there are no tiles.
double tile_peak(double seconds) {
#if defined(__AMX_BF16__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return 0;
  alignas(64) uint8_t config[64] = {};
  config[0] = 1;  // palette
  for (int tile = 0; tile < 8; ++tile) {
    config[16 + 2 * tile] = 64;  // bytes per row
    config[48 + tile] = 16;      // rows
  }
  asm volatile("" : : "m"(config));  // or GCC 12 drops the stores
  _tile_loadconfig(config);
  alignas(64) static thread_local uint8_t operands[4][1024];
  std::memset(operands, 0, sizeof operands);
  const double result = rate(seconds, [&] {
    constexpr int kSteps = 1 << 12;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int step = 0; step < kSteps; ++step) {
      _tile_loadd(4, operands[0], 64);
      _tile_loadd(5, operands[1], 64);
      _tile_loadd(6, operands[2], 64);
      _tile_loadd(7, operands[3], 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    return 4.0 * 2 * 16 * 16 * 32 * kSteps;
  });
  _tile_release();
  return result;
#else
  (void)seconds;
  return 0;
#endif
}
}
