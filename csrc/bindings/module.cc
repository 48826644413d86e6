// The table of contents of octavo.backends.native._native.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings/bindings.h"
#include "ops/yardstick.h"
#include "runtime/refusal.h"

namespace nb = nanobind;
using namespace octavo;

NB_MODULE(_native, m) {
  m.doc() = "Kernels of the native backend. Use octavo.backends.native instead.";

  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const Refusal& refusal) {
      PyErr_SetString(nb::module_::import_("octavo.errors").attr("BackendError").ptr(), refusal.what());
    }
  });

  bind_machine(m);  // cpu_budget, available_isas, choose_isa
  bind_memory(m);   // Weight, KVCache

  auto runtime = nb::class_<Runtime>(m, "Runtime", "The kernels of one instruction set, and the threads that run them.");
  runtime.def("__init__", [](Runtime* self, const std::string& isa, int num_threads) {
    new (self) Runtime(require_isa(isa), num_threads);
  }, nb::arg("isa"), nb::arg("num_threads"));
  runtime.def("streaming_bytes_per_s", &streaming_bytes_per_s, nb::arg("bytes"), nb::call_guard<nb::gil_scoped_release>())
      .def("peak_flops", &peak_flops, nb::call_guard<nb::gil_scoped_release>());
  bind_ops(runtime);       // linear, embedding, rms_norm, …, paged_attention
  bind_sampling(runtime);  // sample, logprobs
  bind_decoder(m);         // Decoder: all layers in one call
}
