// What every op works with: the kernels of one instruction set, the threads, and memory that is kept between calls.
#pragma once

#include <mutex>

#include "kernels/kernel_table.h"
#include "runtime/pages.h"
#include "runtime/scratch.h"
#include "runtime/thread_pool.h"

namespace octavo {

struct Runtime {
  Runtime(Isa isa_, int num_threads) : isa(isa_), kernels(kernel_table(isa_)), pool(num_threads) {}

  const Isa isa;
  const KernelTable& kernels;
  ThreadPool pool;
  PageArena weights;  // what weights are packed into
  std::mutex mutex;  // held by the op that runs: it owns the scratch memory below

  Scratch<float> values, steps, partials, decoder;
  Scratch<int16_t> whole_numbers;
  Scratch<GroupSum> sums, sums16;
  Scratch<uint8_t> tiles;
};

// Rows [num_rows, num_columns] of a caller's array, `stride` elements apart.
template <class T>
struct Rows {
  T* data;
  int64_t num_rows, num_columns, stride;

  T* row(int64_t i) const { return data + i * stride; }
};

// [num_rows, num_heads, head_dim] of a caller's array.
template <class T>
struct Heads {
  T* data;
  int64_t num_rows, num_heads, head_dim, stride, head_stride;

  T* head(int64_t row, int64_t h) const { return data + row * stride + h * head_stride; }
};

// Calls body(row) for all rows, shared out in runs of about 16,384 elements; on the calling thread if there are fewer.
template <class Body>
void for_each_row(Runtime& runtime, int64_t num_rows, int64_t row_elements, const Body& body) {
  const int64_t per_item = row_elements >= 16384 ? 1 : 16384 / (row_elements + 1) + 1;
  runtime.pool.for_each((num_rows + per_item - 1) / per_item, [&](int64_t item) {
    const int64_t end = (item + 1) * per_item < num_rows ? (item + 1) * per_item : num_rows;
    for (int64_t row = item * per_item; row < end; ++row) body(row);
  });
}

}  // namespace octavo
