// The parts of the module, in the order of its table of contents.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_machine(nanobind::module_& m);
void bind_memory(nanobind::module_& m);
void bind_decoder(nanobind::module_& m);
void bind_ops(nanobind::class_<struct Runtime>& runtime);
void bind_sampling(nanobind::class_<struct Runtime>& runtime);

}  // namespace octavo
