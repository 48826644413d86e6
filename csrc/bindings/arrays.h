// From numpy arrays to the views that ops take, checked: a wrong shape or type is an error that names the argument.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "ops/runtime.h"
#include "runtime/refusal.h"

namespace octavo {

namespace nb = nanobind;
using InArray = nb::ndarray<nb::ro, nb::device::cpu>;
using OutArray = nb::ndarray<nb::device::cpu>;

inline void require(bool ok, const char* name, const char* what) {
  if (!ok) throw Refusal(std::string(name) + " must be " + what);
}

template <class T>
constexpr const char* type_name() {
  return std::is_same_v<std::remove_const_t<T>, float> ? "a float32 array" : "an int32 array";
}

template <class T, class Array>
T* data_of(const Array& array, const char* name, size_t ndim) {
  require(array.dtype() == nb::dtype<std::remove_const_t<T>>(), name, type_name<T>());
  require(array.ndim() == ndim, name, ndim == 1 ? "one-dimensional" : ndim == 2 ? "two-dimensional" : "three-dimensional");
  require(array.shape(ndim - 1) <= 1 || array.stride(ndim - 1) == 1, name, "contiguous in its last dimension");
  return static_cast<T*>(const_cast<void*>(static_cast<const void*>(array.data())));
}

// One dimension of `size` elements (any size if negative).
template <class T, class Array>
T* vector(const Array& array, const char* name, int64_t size = -1) {
  T* data = data_of<T>(array, name, 1);
  if (size >= 0 && static_cast<int64_t>(array.shape(0)) != size) {
    throw Refusal(std::string(name) + " must have " + std::to_string(size) + " elements, not " +
                  std::to_string(array.shape(0)));
  }
  return data;
}

// Two dimensions, of `num_rows` × `num_columns` (any if negative).
template <class T, class Array>
Rows<T> rows(const Array& array, const char* name, int64_t num_rows = -1, int64_t num_columns = -1) {
  T* data = data_of<T>(array, name, 2);
  const int64_t r = static_cast<int64_t>(array.shape(0)), c = static_cast<int64_t>(array.shape(1));
  if ((num_rows >= 0 && r != num_rows) || (num_columns >= 0 && c != num_columns)) {
    const auto wanted = [](int64_t n) { return n < 0 ? std::string("any") : std::to_string(n); };
    throw Refusal(std::string(name) + " must be [" + wanted(num_rows) + ", " + wanted(num_columns) + "], not [" +
                  std::to_string(r) + ", " + std::to_string(c) + "]");
  }
  return {data, r, c, r > 1 ? array.stride(0) : c};
}

// [rows, heads, head size].
template <class T, class Array>
Heads<T> heads(const Array& array, const char* name) {
  T* data = data_of<T>(array, name, 3);
  const auto dim = [&](size_t i) { return static_cast<int64_t>(array.shape(i)); };
  return {data, dim(0), dim(1), dim(2), dim(0) > 1 ? array.stride(0) : dim(1) * dim(2),
          dim(1) > 1 ? array.stride(1) : dim(2)};
}

}  // namespace octavo
