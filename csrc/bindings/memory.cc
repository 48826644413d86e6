// Weights and the KV cache: memory that Python holds and never looks into.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "ops/kv_cache.h"
#include "ops/weight.h"

namespace octavo {
namespace {

// (type, rows, columns, bytes [rows, row bytes]) of each matrix.
using Source = std::tuple<std::string, int64_t, int64_t, InArray>;

void make_weight(Weight* self, Runtime& runtime, const std::vector<Source>& sources) {
  std::vector<EncodedMatrix> matrices;
  for (const auto& [type, num_rows, num_columns, bytes] : sources) {
    require(bytes.dtype() == nb::dtype<uint8_t>() && bytes.ndim() == 2 && static_cast<int64_t>(bytes.shape(0)) == num_rows &&
                (bytes.shape(1) <= 1 || bytes.stride(1) == 1),
            "a matrix", "uint8 [rows, row bytes], contiguous in its rows");
    matrices.push_back({type, num_rows, num_columns, static_cast<const uint8_t*>(bytes.data()),
                        num_rows > 1 ? bytes.stride(0) : static_cast<int64_t>(bytes.shape(1)),
                        static_cast<int64_t>(bytes.shape(1))});
  }
  nb::gil_scoped_release release;
  new (self) Weight(matrices, runtime.pool, runtime.weights);
}

nb::ndarray<nb::numpy, uint8_t> cache_bytes(KVCache& cache) {
  return nb::ndarray<nb::numpy, uint8_t>(cache.pages().data(), {cache.pages().size()}, nb::find(cache));
}

}  // namespace

void bind_memory(nb::module_& m) {
  nb::class_<Weight>(m, "Weight", "Matrices stacked along N, packed.")
      .def("__init__", &make_weight, nb::arg("runtime"), nb::arg("matrices"))
      .def_prop_ro("num_features", &Weight::num_features)
      .def_prop_ro("num_columns", &Weight::num_columns)
      .def_prop_ro("num_bytes", &Weight::num_bytes);

  nb::class_<KVCache>(m, "KVCache", "The pool's memory.")
      .def("__init__",
           [](KVCache* self, int num_layers, int64_t num_blocks, int block_size, int num_kv_heads, int head_dim,
              const std::string& dtype) {
             new (self) KVCache(num_layers, num_blocks, block_size, num_kv_heads, head_dim, kv_type(dtype));
           },
           nb::arg("num_layers"), nb::arg("num_blocks"), nb::arg("block_size"), nb::arg("num_kv_heads"),
           nb::arg("head_dim"), nb::arg("dtype"))
      .def("copy_blocks",
           [](KVCache& self, const InArray& source, const InArray& target) {
             const int32_t* from = vector<const int32_t>(source, "source");
             const int64_t count = static_cast<int64_t>(source.shape(0));
             self.copy_blocks(from, vector<const int32_t>(target, "target", count), count);
           },
           nb::arg("source"), nb::arg("target"))
      .def("bytes", &cache_bytes, "A view of all of it, so that tests can poison what was never written.");
}

}  // namespace octavo
