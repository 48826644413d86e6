// Kernel tests that need no Python, so that they run under AddressSanitizer and UndefinedBehaviorSanitizer.
//
// Odd shapes on every instruction set of this machine, each against the scalar one bit for bit, with heap
// arrays of exactly the right size: what a kernel reads or writes beyond them, the sanitizer sees.
//
// With --hashes it prints a hash of each result instead of how many checks passed: a line each, which another machine,
// another processor family even, must print just so.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/attention.h"
#include "ops/block_formats.h"
#include "ops/linear.h"
#include "ops/sampling.h"
#include "runtime/refusal.h"

using namespace octavo;

namespace {

int failures = 0;

void expect(bool ok, const std::string& what) {
  if (ok) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<std::string> hashes;

// FNV-1a over the bytes of a result.
void record(const std::string& what, const void* data, size_t num_bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < num_bytes; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3u;
  char line[17];
  std::snprintf(line, sizeof line, "%016llx", static_cast<unsigned long long>(hash));
  hashes.push_back(line + (" " + what));
}

void record(const std::string& what, const std::vector<float>& values) {
  record(what, values.data(), values.size() * sizeof(float));
}

// About normally distributed. Sums of integers, so that no mathematical library decides their last bits.
std::vector<float> random_floats(size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    int64_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int64_t>(generator() >> 12) - (1 << 19);
    value = static_cast<float>(sum) * 0x1p-19f;
  }
  return values;
}

// Random blocks whose halves are small and finite: their exponent bits are set to those of about 0.01.
std::vector<uint8_t> random_blocks(const BlockFormat& format, int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(count * format.bytes));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator());
  if (!format.unpack) {
    for (size_t i = format.bytes - 1; i < bytes.size(); i += format.bytes) bytes[i] = bytes[i] & 0x80 ? 0xbc : 0x3c;
    return bytes;
  }
  const std::string label = format.label;
  const std::vector<int> halves = label == "Q2_K"   ? std::vector<int>{80, 82}
                                  : label == "Q3_K" ? std::vector<int>{108}
                                  : label == "Q6_K" ? std::vector<int>{208}
                                  : format.has_minima ? std::vector<int>{0, 2}
                                                      : std::vector<int>{0};
  for (int64_t b = 0; b < count; ++b) {
    for (int offset : halves) bytes[static_cast<size_t>(b * format.bytes + offset + 1)] = 0x21;
  }
  return bytes;
}

const char* const kTypes[] = {"F32",  "F16",  "BF16", "Q4_0", "Q4_1", "Q5_0",   "Q5_1",  "Q8_0",
                              "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"};

void test_matmul() {
  for (const char* type : kTypes) {
    const BlockFormat& format = block_format(type);
    const int64_t columns = format.elements == 1 ? 45 : format.elements == 32 ? 96 : 512, features = 37;
    const std::vector<uint8_t> blocks = random_blocks(format, features * columns / format.elements, 1);
    const int64_t row_bytes = columns / format.elements * format.bytes;
    for (int64_t num_rows : {1, 2, 3, 5, 9, 17, 35}) {
      const std::vector<float> x = random_floats(static_cast<size_t>(num_rows * columns), 2);
      std::vector<float> expected;
      for (Isa isa : available_isas()) {
        Runtime runtime(isa, 2);
        const Weight weight({{type, features, columns, blocks.data(), row_bytes, row_bytes}}, runtime.pool, runtime.weights);
        std::vector<float> out(static_cast<size_t>(num_rows * features), -1.0f);
        linear(runtime, {x.data(), num_rows, columns, columns}, weight, nullptr, {out.data(), num_rows, features, features});
        if (expected.empty()) expected = out;
        expect(equal_bits(out, expected), std::string("matmul ") + type + " " + isa_name(isa) + " rows " + std::to_string(num_rows));
      }
      record(std::string("matmul ") + type + " rows " + std::to_string(num_rows), expected);
    }
  }
}

void test_attention() {
  constexpr int kHeads = 6, kKvHeads = 2;
  for (int head_dim : {8, 24, 64, 256}) {
    for (int block_size : {1, 8, 16, 64}) {
      for (KVType type : {KVType::kBf16, KVType::kF32, KVType::kInt8}) {
        const int64_t length = 70, width = kHeads * head_dim, kv_width = kKvHeads * head_dim;
        const std::string shape = " head " + std::to_string(head_dim) + " block " + std::to_string(block_size) + " bytes " +
                                  std::to_string(KVLayout{type, 1, 1, 16}.element_bytes());
        const auto q = random_floats(static_cast<size_t>(length * width), 3);
        const auto k = random_floats(static_cast<size_t>(length * kv_width), 4);
        const auto v = random_floats(static_cast<size_t>(length * kv_width), 5);
        const int64_t num_blocks = (length + block_size - 1) / block_size;
        std::vector<int32_t> table, positions;
        for (int64_t b = 0; b < num_blocks; ++b) table.push_back(static_cast<int32_t>(num_blocks - 1 - b));
        for (int64_t p = 0; p < length; ++p) positions.push_back(static_cast<int32_t>(p));
        std::vector<int32_t> slots;
        for (int32_t p : positions) slots.push_back(table[static_cast<size_t>(p / block_size)] * block_size + p % block_size);
        const int32_t starts[] = {0, static_cast<int32_t>(length)}, seq_lens[] = {static_cast<int32_t>(length)};
        std::vector<float> expected;
        for (Isa isa : available_isas()) {
          Runtime runtime(isa, 2);
          KVCache cache(1, num_blocks, block_size, kKvHeads, head_dim, type);
          std::memset(cache.pages().data(), 0xff, cache.pages().size());  // NaN, of every type
          cache.write(runtime, 0, {k.data(), length, kKvHeads, head_dim, kv_width, head_dim},
                      {v.data(), length, kKvHeads, head_dim, kv_width, head_dim}, slots.data());
          const AttentionBatch batch{positions.data(), starts, seq_lens, {table.data(), 1, num_blocks, num_blocks}, length, 1};
          std::vector<float> out(static_cast<size_t>(length * width));
          paged_attention(runtime, {q.data(), length, kHeads, head_dim, width, head_dim}, cache, 0, batch, 0.1f, 19,
                          {out.data(), length, width, width});
          for (float value : out) expect(std::isfinite(value), "attention reads what was never written");
          if (expected.empty()) expected = out;
          expect(equal_bits(out, expected), std::string("attention ") + isa_name(isa) + " head " + std::to_string(head_dim) +
                                                " block " + std::to_string(block_size));
          if (isa == Isa::kScalar) record("kv cache" + shape, cache.pages().data(), cache.pages().size());
        }
        record("attention" + shape, expected);
      }
    }
  }
}

// Rows of every length around the width of a vector, and numbers near the smallest ones, which are flushed to zero.
void test_elementwise() {
  for (int64_t n : {1, 2, 15, 16, 17, 64, 100, 576}) {
    const size_t count = static_cast<size_t>(n);
    const auto x = random_floats(count, 7), y = random_floats(count, 8);
    auto tiny = x;
    for (float& value : tiny) value *= 0x1p-125f;
    std::vector<float> expected;
    for (Isa isa : available_isas()) {
      const KernelTable& kernels = kernel_table(isa);
      std::vector<float> norm(count), gated(count), sum = y, turned = x, terms(count), small(count);
      float largest = 0;
      ThreadPool(1).for_each(1, [&](int64_t) {  // with the pool's rounding and flushing
        kernels.rms_norm(x.data(), y.data(), 1e-5f, n, norm.data());
        kernels.silu_and_mul(x.data(), y.data(), n, gated.data());
        kernels.add(x.data(), sum.data(), n);
        kernels.rotate(turned.data(), x.data(), y.data(), n / 2);
        largest = kernels.max_value(x.data(), n);
        kernels.sum_exp(x.data(), n, largest, terms.data());
        kernels.silu_and_mul(tiny.data(), tiny.data(), n, small.data());
      });
      std::vector<float> all{largest};
      for (const auto* part : {&norm, &gated, &sum, &turned, &terms, &small}) all.insert(all.end(), part->begin(), part->end());
      if (expected.empty()) expected = all;
      expect(equal_bits(all, expected), std::string("elementwise ") + isa_name(isa) + " of " + std::to_string(n));
    }
    record("elementwise of " + std::to_string(n), expected);
  }
}

void test_sampling() {
  for (int64_t vocabulary : {1, 15, 16, 1000}) {
    const auto logits = random_floats(static_cast<size_t>(vocabulary), 6);
    SamplingRow row;
    row.temperature = 0.8f;
    row.top_k = 20;
    row.top_p = 0.9f;
    row.uniform = 0.37f;
    int32_t expected = -1;
    for (Isa isa : available_isas()) {
      const int32_t chosen = choose_token(kernel_table(isa), logits.data(), vocabulary, row);
      if (expected < 0) expected = chosen;
      expect(chosen == expected, std::string("sampling ") + isa_name(isa));
    }
    record("sampling of " + std::to_string(vocabulary), &expected, sizeof expected);
    auto damaged = logits;
    damaged.back() = std::numeric_limits<float>::quiet_NaN();
    bool refused = false;
    try {
      choose_token(kernel_table(available_isas().back()), damaged.data(), vocabulary, row);
    } catch (const Refusal&) {
      refused = true;
    }
    expect(refused, "a NaN among the logits is refused");
  }
}

void test_thread_pool() {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t items : {0, 1, 2, 7, 1000}) {
      for (int turn = 0; turn < 50; ++turn) {
        std::vector<int> count(static_cast<size_t>(items));
        pool.for_each(items, [&](int64_t item) { ++count[static_cast<size_t>(item)]; });
        for (int c : count) expect(c == 1, "every item runs exactly once");
      }
    }
  }
}

void test_page_arena() {
  std::vector<std::shared_ptr<uint8_t>> pieces;
  const size_t sizes[] = {1, 64, 100, kHugePage, size_t{15} << 20, size_t{20} << 20, 3};
  {
    PageArena arena;
    for (size_t size : sizes) pieces.push_back(arena.allocate(size));
  }
  for (size_t i = 0; i < pieces.size(); ++i) {  // all outlive the arena, zeroed and apart
    uint8_t* const data = pieces[i].get();
    expect(reinterpret_cast<uintptr_t>(data) % 64 == 0, "arena memory starts at a cache line");
    bool zero = true;
    for (size_t k = 0; k < sizes[i]; ++k) zero = zero && data[k] == 0;
    expect(zero, "arena memory is zero and nobody else's");
    std::memset(data, 0xff, sizes[i]);
  }
  expect(reinterpret_cast<uintptr_t>(pieces[5].get()) % kHugePage == 0, "large ranges start at huge pages");
}

}  // namespace

int main(int argc, char** argv) {
  const bool prints_hashes = argc > 1 && std::string(argv[1]) == "--hashes";
  std::string isas;
  for (Isa isa : available_isas()) isas += std::string(" ") + isa_name(isa);
  std::fprintf(stderr, "instruction sets here:%s\n", isas.c_str());
  test_thread_pool();
  test_page_arena();
  test_matmul();
  test_attention();
  test_elementwise();
  test_sampling();
  if (prints_hashes) {
    for (const std::string& line : hashes) std::printf("%s\n", line.c_str());
  } else {
    std::printf(failures ? "%d checks failed\n" : "all checks passed\n", failures);
  }
  return failures != 0;
}
