// What the machine offers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "runtime/cpu_budget.h"
#include "runtime/cpu_features.h"

namespace nb = nanobind;

namespace octavo {

void bind_machine(nb::module_& m) {
  nb::class_<CpuBudget>(m, "CpuBudget")
      .def_ro("cores_online", &CpuBudget::cores_online)
      .def_ro("cores_affinity", &CpuBudget::cores_affinity)
      .def_ro("quota_cores", &CpuBudget::quota_cores)
      .def_ro("num_threads", &CpuBudget::num_threads)
      .def_ro("reason", &CpuBudget::reason);
  m.def("cpu_budget", &cpu_budget);
  m.def("cgroup_quota_cores", &cgroup_quota_cores, nb::arg("proc_cgroup"), nb::arg("mount"));
  m.def("available_isas", [] {
    std::vector<std::string> names;
    for (Isa isa : available_isas()) names.emplace_back(isa_name(isa));
    return names;
  });
  m.def("choose_isa", [] { return std::string(isa_name(choose_isa())); });
}

}  // namespace octavo
