#include "ops/yardstick.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "runtime/pages.h"

namespace octavo {
namespace {

constexpr int kTurns = 12;

// The shortest of several turns of body() in seconds.
template <class Body>
double best_seconds(const Body& body) {
  double best = 1e9;
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

double streaming_bytes_per_s(Runtime& runtime, size_t bytes) {
  const Pages pages(bytes);
  std::fill(pages.data(), pages.data() + bytes, uint8_t{1});
  constexpr size_t kPiece = size_t{1} << 18;
  const int64_t pieces = static_cast<int64_t>(bytes / kPiece);
  std::vector<float> sums(static_cast<size_t>(pieces));
  const double seconds = best_seconds([&] {
    runtime.pool.for_each(pieces, [&](int64_t piece) {
      const float* begin = reinterpret_cast<const float*>(pages.data() + static_cast<size_t>(piece) * kPiece);
      sums[static_cast<size_t>(piece)] = runtime.kernels.max_value(begin, kPiece / sizeof(float));
    });
  });
  return static_cast<double>(pieces) * static_cast<double>(kPiece) / seconds;
}

double peak_flops(Runtime& runtime) {
  constexpr int64_t kSteps = 20000;
  const int threads = runtime.pool.num_threads();
  double flops = 0;
  const double seconds = best_seconds([&] {
    std::vector<double> done(static_cast<size_t>(threads));
    runtime.pool.for_each(threads, [&](int64_t item) { done[static_cast<size_t>(item)] = runtime.kernels.burn(kSteps); });
    flops = 0;
    for (double d : done) flops += d;
  });
  return flops / seconds;
}

}  // namespace octavo
