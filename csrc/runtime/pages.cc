#include "runtime/pages.h"

#include <sys/mman.h>

#include <new>

namespace octavo {
namespace {

constexpr size_t kChunkBytes = size_t{64} << 20;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Pages::Pages(size_t bytes) : mapping_(nullptr), mapped_(0), data_(nullptr), size_(bytes) {
  if (!bytes) return;
  mapped_ = bytes < kHugePage ? bytes : bytes + kHugePage;
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  madvise(mapping_, mapped_, MADV_HUGEPAGE);  // a wish: fewer misses of the address cache when weights stream by
  data_ = static_cast<uint8_t*>(mapping_);
  if (mapped_ > bytes) data_ += round_up(reinterpret_cast<uintptr_t>(data_), kHugePage) - reinterpret_cast<uintptr_t>(data_);
}

Pages::~Pages() {
  if (mapping_) munmap(mapping_, mapped_);
}

Pages::Pages(Pages&& other) noexcept
    : mapping_(other.mapping_), mapped_(other.mapped_), data_(other.data_), size_(other.size_) {
  other.mapping_ = nullptr;
}

std::shared_ptr<uint8_t> PageArena::allocate(size_t bytes) {
  bytes = round_up(bytes, 64);
  if (bytes > kChunkBytes / 4) {  // a chunk of its own: little of it is lost
    const auto own = std::make_shared<Pages>(bytes);
    return {own, own->data()};
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (!chunk_ || used_ + bytes > chunk_->size()) {
    chunk_ = std::make_shared<Pages>(kChunkBytes);
    used_ = 0;
  }
  uint8_t* const data = chunk_->data() + used_;
  used_ += bytes;
  return {chunk_, data};
}

}  // namespace octavo
