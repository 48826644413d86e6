// The fused decoder stack.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "ops/decoder.h"

namespace octavo {
namespace {

using Maybe = std::optional<InArray>;
// (qkv, o, gate_up, down, input norm, post-attention norm, qkv bias, q norm, k norm, sliding window)
using Layer = std::tuple<const Weight*, const Weight*, const Weight*, const Weight*, InArray, InArray, Maybe, Maybe, Maybe,
                         int64_t>;

const float* optional_vector(const Maybe& array, const char* name, int64_t size) {
  return array ? vector<const float>(*array, name, size) : nullptr;
}

// Only checks and remembers addresses: the caller keeps the weights and arrays alive.
void make_decoder(Decoder* self, const Weight& embedding, const std::vector<Layer>& layers, const InArray& final_norm,
                  const InArray& cos_sin, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, float epsilon,
                  float attention_scale) {
  const int64_t hidden = embedding.num_columns(), heads = num_heads * head_dim, kv = num_kv_heads * head_dim;
  Decoder decoder{&embedding, {}, vector<const float>(final_norm, "final_norm", hidden), rows<const float>(cos_sin, "cos_sin"),
                  num_heads, num_kv_heads, head_dim, epsilon, attention_scale};
  for (const auto& [qkv, o, gate_up, down, input_norm, post_norm, bias, q_norm, k_norm, window] : layers) {
    require(qkv->num_columns() == hidden && qkv->num_features() == heads + 2 * kv, "qkv", "[heads + 2 kv heads, hidden]");
    require(o->num_columns() == heads && o->num_features() == hidden, "o", "[hidden, heads]");
    require(gate_up->num_columns() == hidden && gate_up->num_features() == 2 * down->num_columns(), "gate_up",
            "[2 intermediate, hidden]");
    require(down->num_features() == hidden, "down", "[hidden, intermediate]");
    decoder.layers.push_back({qkv, o, gate_up, down, vector<const float>(input_norm, "input_norm", hidden),
                              vector<const float>(post_norm, "post_attention_norm", hidden),
                              optional_vector(bias, "qkv_bias", qkv->num_features()),
                              optional_vector(q_norm, "q_norm", head_dim), optional_vector(k_norm, "k_norm", head_dim),
                              window});
  }
  new (self) Decoder(std::move(decoder));
}

void forward(const Decoder& self, Runtime& runtime, const InArray& input_ids, const InArray& positions,
             const InArray& slot_mapping, const InArray& query_start_loc, const InArray& seq_lens,
             const InArray& block_tables, KVCache& cache, const OutArray& out) {
  const Rows<float> result = rows<float>(out, "out", -1, self.embedding->num_columns());
  require(cache.num_layers() == static_cast<int>(self.layers.size()) && cache.layout().num_kv_heads == self.num_kv_heads &&
              cache.layout().head_dim == self.head_dim,
          "kv_cache", "made for this model");
  AttentionBatch batch{};
  batch.num_tokens = result.num_rows;
  batch.positions = vector<const int32_t>(positions, "positions", batch.num_tokens);
  batch.seq_lens = vector<const int32_t>(seq_lens, "seq_lens");
  batch.num_requests = static_cast<int64_t>(seq_lens.shape(0));
  batch.query_start_loc = vector<const int32_t>(query_start_loc, "query_start_loc", batch.num_requests + 1);
  batch.block_tables = rows<const int32_t>(block_tables, "block_tables", batch.num_requests);
  const int32_t* ids = vector<const int32_t>(input_ids, "input_ids", batch.num_tokens);
  const int32_t* slots = vector<const int32_t>(slot_mapping, "slot_mapping", batch.num_tokens);
  nb::gil_scoped_release release;
  std::lock_guard<std::mutex> lock(runtime.mutex);
  decode(runtime, self, ids, slots, batch, cache, result);
}

}  // namespace

void bind_decoder(nb::module_& m) {
  nb::class_<Decoder>(m, "Decoder", "A stack of decoder layers that runs in one call.")
      .def("__init__", &make_decoder, nb::arg("embedding"), nb::arg("layers"), nb::arg("final_norm"), nb::arg("cos_sin"),
           nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("epsilon"),
           nb::arg("attention_scale"))
      .def("forward", &forward, nb::arg("runtime"), nb::arg("input_ids"), nb::arg("positions"), nb::arg("slot_mapping"),
           nb::arg("query_start_loc"), nb::arg("seq_lens"), nb::arg("block_tables"), nb::arg("kv_cache"), nb::arg("out"));
}

}  // namespace octavo
