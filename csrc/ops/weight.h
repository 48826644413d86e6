// A weight: matrices stacked along N, each in the packing of kernels/packed_matrix.h. It owns the packed bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/packed_matrix.h"
#include "runtime/pages.h"
#include "runtime/thread_pool.h"

namespace octavo {

// A matrix as it lies in a file: rows of `row_bytes` bytes, `row_stride` bytes apart.
struct EncodedMatrix {
  std::string type;  // as block_format() knows it
  int64_t num_rows, num_columns;
  const uint8_t* data;
  int64_t row_stride, row_bytes;
};

class Weight {
 public:
  // Packs the matrices into memory of the arena. Throws Refusal if their columns differ or do not fill whole blocks.
  Weight(const std::vector<EncodedMatrix>& matrices, ThreadPool& pool, PageArena& arena);
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  int64_t num_features() const { return num_features_; }
  int64_t num_columns() const { return num_columns_; }
  int64_t padded_columns() const { return (num_columns_ + kDepth - 1) / kDepth * kDepth; }
  int64_t num_bytes() const;
  const std::vector<PackedMatrix>& matrices() const { return matrices_; }

  // Element by element: out[k] = scale * value(code) + minimum of row `feature`.
  void dequantize_row(int64_t feature, float* out) const;

 private:
  std::vector<PackedMatrix> matrices_;
  std::vector<std::shared_ptr<uint8_t>> memory_;
  int64_t num_features_ = 0, num_columns_ = 0;
};

}  // namespace octavo
