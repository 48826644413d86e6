// Large zeroed memory straight from the operating system: untouched pages cost nothing, huge pages where there are any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace octavo {

constexpr size_t kHugePage = size_t{2} << 20;

// One range; it starts at a huge page's boundary if it is large enough for one.
class Pages {
 public:
  // Throws std::bad_alloc if the address space does not have that much.
  explicit Pages(size_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  Pages& operator=(Pages&&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* mapping_;
  size_t mapped_;
  uint8_t* data_;
  size_t size_;
};

// Many ranges that live long, such as a model's weights, cut from chunks of many huge pages: a matrix alone rarely fills
// one, and in small pages every few kilobytes of streaming miss the address cache. A chunk is returned with its last range.
class PageArena {
 public:
  // Zeroed, aligned to cache lines. From any thread. Throws std::bad_alloc.
  std::shared_ptr<uint8_t> allocate(size_t bytes);

 private:
  std::mutex mutex_;
  std::shared_ptr<Pages> chunk_;
  size_t used_ = 0;  // of the chunk
};

}  // namespace octavo
