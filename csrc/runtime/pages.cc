#include "runtime/pages.h"

#include <sys/mman.h>

#include <new>

namespace octavo {

Pages::Pages(size_t bytes) : data_(nullptr), size_(bytes) {
  if (!bytes) return;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  madvise(p, bytes, MADV_HUGEPAGE);  // a wish: fewer misses of the address cache when weights stream by
  data_ = static_cast<uint8_t*>(p);
}

Pages::~Pages() {
  if (data_) munmap(data_, size_);
}

Pages::Pages(Pages&& other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr; }

}  // namespace octavo
