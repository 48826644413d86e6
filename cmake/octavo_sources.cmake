# What is built from what.

# Once per instruction set, each in a namespace of its own.
set(OCTAVO_KERNEL_SOURCES
    csrc/kernels/activations.cc
    csrc/kernels/attention.cc
    csrc/kernels/elementwise.cc
    csrc/kernels/softmax.cc
    csrc/kernels/table.cc)

# Once, for any machine.
set(OCTAVO_CORE_SOURCES
    csrc/kernels/dispatch.cc
    csrc/ops/attention.cc
    csrc/ops/block_formats.cc
    csrc/ops/decoder.cc
    csrc/ops/kv_cache.cc
    csrc/ops/linear.cc
    csrc/ops/sampling.cc
    csrc/ops/weight.cc
    csrc/ops/yardstick.cc
    csrc/runtime/cpu_budget.cc
    csrc/runtime/cpu_features.cc
    csrc/runtime/pages.cc
    csrc/runtime/thread_pool.cc)

set(OCTAVO_BINDING_SOURCES
    csrc/bindings/decoder.cc
    csrc/bindings/machine.cc
    csrc/bindings/memory.cc
    csrc/bindings/module.cc
    csrc/bindings/ops.cc
    csrc/bindings/sampling.cc)

set(OCTAVO_TEST_SOURCES tests/cpp/main.cc)

find_package(Threads REQUIRED)
add_library(octavo_core STATIC ${OCTAVO_CORE_SOURCES})
target_link_libraries(octavo_core PUBLIC Threads::Threads)
octavo_flags(octavo_core)

set(by_fma ${OCTAVO_KERNEL_SOURCES} csrc/kernels/matmul.cc csrc/kernels/peak.cc)
set(by_tiles ${OCTAVO_KERNEL_SOURCES} csrc/kernels/matmul_amx.cc csrc/kernels/peak_amx.cc)
octavo_kernels(scalar SOURCES ${by_fma})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mprefer-vector-width=512)
  octavo_kernels(avx2 SOURCES ${by_fma} FLAGS -mavx2 -mfma -mf16c)
  octavo_kernels(avx512 SOURCES ${by_fma} FLAGS ${avx512})
  octavo_kernels(amx SOURCES ${by_tiles} FLAGS ${avx512} -mamx-tile -mamx-bf16)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  octavo_kernels(neon SOURCES ${by_fma})
endif()
