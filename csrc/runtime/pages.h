// Large zeroed memory straight from the operating system: untouched pages cost nothing, huge pages where there are any.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

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
  uint8_t* data_;
  size_t size_;
};

}  // namespace octavo
