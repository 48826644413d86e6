// Choosing tokens: unpack the batch's parameters row by row, and choose in parallel.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <exception>
#include <optional>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "ops/sampling.h"

namespace octavo {
namespace {

using Maybe = std::optional<InArray>;

// The rows' parameters out of a SamplingBatch's attributes.
std::vector<SamplingRow> sampling_rows(nb::handle sampling, int64_t num_rows) {
  std::vector<SamplingRow> rows(static_cast<size_t>(num_rows));
  const auto array = [&](const char* name) { return nb::cast<Maybe>(sampling.attr(name)); };
  const auto each = [&]<class T>(const char* name, T SamplingRow::*field) {
    if (const Maybe values = array(name)) {
      const T* v = vector<const T>(*values, name, num_rows);
      for (size_t r = 0; r < rows.size(); ++r) rows[r].*field = v[r];
    }
  };
  each("temperature", &SamplingRow::temperature);
  each("top_k", &SamplingRow::top_k);
  each("top_p", &SamplingRow::top_p);
  each("min_p", &SamplingRow::min_p);
  each("uniform", &SamplingRow::uniform);
  each("repetition_penalty", &SamplingRow::repetition_penalty);
  each("presence_penalty", &SamplingRow::presence_penalty);
  each("frequency_penalty", &SamplingRow::frequency_penalty);

  // Lists in CSR form: row r owns starts[r] … starts[r + 1] - 1.
  const auto lists = [&]<class T>(const char* starts_name, const char* ids_name, const char* values_name,
                                  const int32_t* SamplingRow::*ids_field, const T* SamplingRow::*values_field,
                                  int64_t SamplingRow::*size_field) {
    const Maybe starts = array(starts_name), ids = array(ids_name), values = array(values_name);
    if (!starts || !ids || !values) return;
    const int32_t* s = vector<const int32_t>(*starts, starts_name, num_rows + 1);
    const int32_t* i = vector<const int32_t>(*ids, ids_name);
    const int64_t size = static_cast<int64_t>(ids->shape(0));
    const T* v = vector<const T>(*values, values_name, size);
    for (size_t r = 0; r < rows.size(); ++r) {
      require(s[r] >= 0 && s[r] <= s[r + 1] && s[r + 1] <= size, starts_name, "ascending, within the entries");
      rows[r].*ids_field = i + s[r];
      rows[r].*values_field = v + s[r];
      rows[r].*size_field = s[r + 1] - s[r];
    }
  };
  lists("history_starts", "history_token_ids", "history_counts", &SamplingRow::history_ids, &SamplingRow::history_counts,
        &SamplingRow::history_size);
  lists("bias_starts", "bias_token_ids", "bias_values", &SamplingRow::bias_ids, &SamplingRow::bias_values,
        &SamplingRow::bias_size);
  return rows;
}

// Shares out the rows; the first row's refusal, if any, is thrown once all are done.
template <class Body>
void for_each_logits_row(Runtime& runtime, int64_t num_rows, const Body& body) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(num_rows));
  {
    nb::gil_scoped_release release;
    std::lock_guard<std::mutex> lock(runtime.mutex);
    runtime.pool.for_each(num_rows, [&](int64_t row) {
      try {
        body(row);
      } catch (...) {
        errors[static_cast<size_t>(row)] = std::current_exception();
      }
    });
  }
  for (size_t row = 0; row < errors.size(); ++row) {
    if (!errors[row]) continue;
    try {
      std::rethrow_exception(errors[row]);
    } catch (const Refusal& refusal) {
      throw Refusal("row " + std::to_string(row) + " of the logits: " + refusal.what());
    }
  }
}

void bind_sample(Runtime& self, const InArray& logits, nb::object sampling, const OutArray& token_ids) {
  const Rows<const float> in = rows<const float>(logits, "logits");
  require(in.num_columns > 0, "logits", "[rows, vocabulary] with a vocabulary");
  int32_t* out = vector<int32_t>(token_ids, "token_ids", in.num_rows);
  const std::vector<SamplingRow> parameters = sampling_rows(sampling, in.num_rows);
  for_each_logits_row(self, in.num_rows, [&](int64_t row) {
    out[row] = choose_token(self.kernels, in.row(row), in.num_columns, parameters[static_cast<size_t>(row)]);
  });
}

void bind_logprobs(Runtime& self, const InArray& logits, const InArray& chosen, const OutArray& token_ids,
                   const OutArray& logprobs, const OutArray& ranks) {
  const Rows<const float> in = rows<const float>(logits, "logits");
  const Rows<int32_t> ids = rows<int32_t>(token_ids, "token_ids", in.num_rows);
  const int count = static_cast<int>(ids.num_columns) - 1;
  require(count >= 0 && count <= in.num_columns, "num_logprobs", "between 0 and the vocabulary");
  const Rows<float> values = rows<float>(logprobs, "logprobs", in.num_rows, ids.num_columns);
  const int32_t* tokens = vector<const int32_t>(chosen, "token_ids", in.num_rows);
  int32_t* rank = vector<int32_t>(ranks, "ranks", in.num_rows);
  for_each_logits_row(self, in.num_rows, [&](int64_t row) {
    log_probabilities(self.kernels, in.row(row), in.num_columns, tokens[row], count, ids.row(row), values.row(row),
                      rank + row);
  });
}

}  // namespace

void bind_sampling(nb::class_<Runtime>& runtime) {
  runtime.def("sample", &bind_sample, nb::arg("logits"), nb::arg("sampling"), nb::arg("token_ids"))
      .def("logprobs", &bind_logprobs, nb::arg("logits"), nb::arg("chosen"), nb::arg("token_ids"), nb::arg("logprobs"),
           nb::arg("ranks"));
}

}  // namespace octavo
