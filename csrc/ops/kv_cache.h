// The memory of the paged KV cache: [layer][block], blocks as kernels/kv_layout.h draws them.
#pragma once

#include <string>

#include "kernels/kernel_table.h"
#include "ops/runtime.h"
#include "runtime/pages.h"

namespace octavo {

// The type of that name, as octavo/backends/base.py has them. Throws Refusal for any other.
KVType kv_type(const std::string& name);

class KVCache {
 public:
  // Throws Refusal for a shape that attention does not support.
  KVCache(int num_layers, int64_t num_blocks, int block_size, int num_kv_heads, int head_dim, KVType type);
  KVCache(const KVCache&) = delete;
  KVCache& operator=(const KVCache&) = delete;

  int num_layers() const { return num_layers_; }
  int64_t num_blocks() const { return num_blocks_; }
  const KVLayout& layout() const { return layout_; }
  Pages& pages() { return pages_; }

  KVLayer layer(int index) const {
    return {pages_.data() + index * num_blocks_ * block_bytes_, block_bytes_, layout_};
  }

  // Writes k and v of every row to its slot. Throws Refusal for a slot that the cache does not have.
  void write(Runtime& runtime, int layer, Heads<const float> k, Heads<const float> v, const int32_t* slots);

  // Copies blocks over all layers.
  void copy_blocks(const int32_t* source, const int32_t* target, int64_t count);

 private:
  int num_layers_;
  int64_t num_blocks_;
  KVLayout layout_;
  int64_t block_bytes_;
  Pages pages_;
};

}  // namespace octavo
