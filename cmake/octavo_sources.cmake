# What is built from what.

set(OCTAVO_KERNEL_SOURCES)

set(OCTAVO_BINDING_SOURCES csrc/bindings/module.cc)

set(OCTAVO_TEST_SOURCES tests/cpp/main.cc)

find_package(Threads REQUIRED)
add_library(octavo_core STATIC csrc/runtime/cpu_budget.cc csrc/runtime/cpu_features.cc)
target_link_libraries(octavo_core PUBLIC Threads::Threads)
octavo_flags(octavo_core)
