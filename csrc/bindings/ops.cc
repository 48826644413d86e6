// The ops: check the arrays, let go of the interpreter, compute.
#include <nanobind/nanobind.h>

#include <optional>

#include <nanobind/stl/optional.h>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "ops/attention.h"
#include "ops/linear.h"

namespace octavo {
namespace {

// Runs an op without the interpreter's lock, one at a time per runtime.
template <class Op>
void compute(Runtime& runtime, const Op& op) {
  nb::gil_scoped_release release;
  std::lock_guard<std::mutex> lock(runtime.mutex);
  op();
}

void bind_linear(Runtime& self, const InArray& x, const Weight& weight, std::optional<InArray> bias, const OutArray& out) {
  const Rows<const float> in = rows<const float>(x, "x", -1, weight.num_columns());
  const float* offsets = bias ? vector<const float>(*bias, "bias", weight.num_features()) : nullptr;
  const Rows<float> result = rows<float>(out, "out", in.num_rows, weight.num_features());
  compute(self, [&] { linear(self, in, weight, offsets, result); });
}

void bind_embedding(Runtime& self, const Weight& weight, const InArray& ids, const OutArray& out) {
  const Rows<float> result = rows<float>(out, "out", -1, weight.num_columns());
  const int32_t* tokens = vector<const int32_t>(ids, "input_ids", result.num_rows);
  compute(self, [&] { embedding(self, weight, tokens, result); });
}

void bind_rms_norm(Runtime& self, const InArray& x, const InArray& weight, float epsilon, const OutArray& out) {
  const Heads<const float> in = heads<const float>(x, "x");
  const float* factors = vector<const float>(weight, "weight", in.head_dim);
  const Heads<float> result = heads<float>(out, "out");
  require(result.num_rows == in.num_rows && result.num_heads == in.num_heads && result.head_dim == in.head_dim &&
              result.stride == in.num_heads * in.head_dim && result.head_stride == in.head_dim,
          "out", "contiguous and shaped like x");
  compute(self, [&] { rms_norm(self, in, factors, epsilon, result.data); });
}

void bind_add_rms_norm(Runtime& self, const InArray& x, const OutArray& residual, const InArray& weight, float epsilon,
                       const OutArray& out) {
  const Rows<const float> in = rows<const float>(x, "x");
  const Rows<float> sum = rows<float>(residual, "residual", in.num_rows, in.num_columns);
  const float* factors = vector<const float>(weight, "weight", in.num_columns);
  const Rows<float> result = rows<float>(out, "out", in.num_rows, in.num_columns);
  compute(self, [&] { add_rms_norm(self, in, sum, factors, epsilon, result); });
}

void bind_act_and_mul(Runtime& self, const InArray& x, const OutArray& out) {
  const Rows<const float> in = rows<const float>(x, "x");
  const Rows<float> result = rows<float>(out, "out", in.num_rows, in.num_columns / 2);
  compute(self, [&] { act_and_mul(self, in, result); });
}

void bind_rotary_embedding(Runtime& self, const OutArray& q, const OutArray& k, const InArray& positions,
                           const InArray& cos_sin) {
  const Heads<float> queries = heads<float>(q, "q"), keys = heads<float>(k, "k");
  const int32_t* where = vector<const int32_t>(positions, "positions", queries.num_rows);
  const Rows<const float> table = rows<const float>(cos_sin, "cos_sin");
  require(keys.num_rows == queries.num_rows && keys.head_dim == queries.head_dim, "k", "shaped like q");
  require(table.num_columns % 2 == 0 && table.num_columns <= queries.head_dim, "cos_sin",
          "[positions, rotary_dim] with an even rotary_dim up to the head size");
  compute(self, [&] {
    rotary_embedding(self, queries, where, table);
    rotary_embedding(self, keys, where, table);
  });
}

void require_layer(const KVCache& cache, int layer) {
  require(layer >= 0 && layer < cache.num_layers(), "layer", "one of the KV cache's");
}

void bind_reshape_and_cache(Runtime& self, const InArray& k, const InArray& v, KVCache& cache, int layer,
                            const InArray& slot_mapping) {
  const Heads<const float> keys = heads<const float>(k, "k"), values = heads<const float>(v, "v");
  const KVLayout& layout = cache.layout();
  for (const auto& [x, name] : {std::pair(keys, "k"), std::pair(values, "v")}) {
    require(x.num_rows == keys.num_rows && x.num_heads == layout.num_kv_heads && x.head_dim == layout.head_dim, name,
            "[tokens, num_kv_heads, head_dim] of the KV cache");
  }
  require_layer(cache, layer);
  const int32_t* slots = vector<const int32_t>(slot_mapping, "slot_mapping", keys.num_rows);
  compute(self, [&] { cache.write(self, layer, keys, values, slots); });
}

void bind_paged_attention(Runtime& self, const InArray& q, const KVCache& cache, int layer, const InArray& positions,
                          const InArray& query_start_loc, const InArray& seq_lens, const InArray& block_tables,
                          float scale, int64_t sliding_window, const OutArray& out) {
  const Heads<const float> queries = heads<const float>(q, "q");
  require(queries.num_heads % cache.layout().num_kv_heads == 0 && queries.head_dim == cache.layout().head_dim, "q",
          "[tokens, a multiple of num_kv_heads, head_dim] of the KV cache");
  require_layer(cache, layer);
  AttentionBatch batch{};
  batch.num_tokens = queries.num_rows;
  batch.positions = vector<const int32_t>(positions, "positions", batch.num_tokens);
  batch.seq_lens = vector<const int32_t>(seq_lens, "seq_lens");
  batch.num_requests = static_cast<int64_t>(seq_lens.shape(0));
  batch.query_start_loc = vector<const int32_t>(query_start_loc, "query_start_loc", batch.num_requests + 1);
  batch.block_tables = rows<const int32_t>(block_tables, "block_tables", batch.num_requests);
  const Rows<float> result = rows<float>(out, "out", batch.num_tokens, queries.num_heads * queries.head_dim);
  compute(self, [&] { paged_attention(self, queries, cache, layer, batch, scale, sliding_window, result); });
}

}  // namespace

void bind_ops(nb::class_<Runtime>& runtime) {
  runtime
      .def("linear", &bind_linear, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("out"))
      .def("embedding", &bind_embedding, nb::arg("weight"), nb::arg("input_ids"), nb::arg("out"))
      .def("rms_norm", &bind_rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("epsilon"), nb::arg("out"))
      .def("add_rms_norm", &bind_add_rms_norm, nb::arg("x"), nb::arg("residual"), nb::arg("weight"), nb::arg("epsilon"),
           nb::arg("out"))
      .def("act_and_mul", &bind_act_and_mul, nb::arg("x"), nb::arg("out"))
      .def("rotary_embedding", &bind_rotary_embedding, nb::arg("q"), nb::arg("k"), nb::arg("positions"),
           nb::arg("cos_sin"))
      .def("reshape_and_cache", &bind_reshape_and_cache, nb::arg("k"), nb::arg("v"), nb::arg("kv_cache"),
           nb::arg("layer"), nb::arg("slot_mapping"))
      .def("paged_attention", &bind_paged_attention, nb::arg("q"), nb::arg("kv_cache"), nb::arg("layer"),
           nb::arg("positions"), nb::arg("query_start_loc"), nb::arg("seq_lens"), nb::arg("block_tables"),
           nb::arg("scale"), nb::arg("sliding_window"), nb::arg("out"));
}

}  // namespace octavo
