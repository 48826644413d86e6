// Memory that an operation needs while it runs: grown on demand, kept for the next call, aligned to cache lines.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace octavo {

template <class T>
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // At least `count` elements; what was there before is lost when it grows.
  T* require(size_t count) {
    if (count > capacity_) {
      std::free(data_);
      capacity_ = 0;
      const size_t bytes = (count * sizeof(T) + 4095) / 4096 * 4096;
      data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
      if (!data_) throw std::bad_alloc();
      capacity_ = bytes / sizeof(T);
    }
    return data_;
  }

 private:
  T* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace octavo
