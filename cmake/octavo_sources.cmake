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

set(by_vectors ${OCTAVO_KERNEL_SOURCES} csrc/kernels/matmul.cc csrc/kernels/peak.cc)
set(by_tiles ${OCTAVO_KERNEL_SOURCES} csrc/kernels/matmul_amx.cc csrc/kernels/peak_amx.cc)
octavo_kernels(scalar SOURCES ${by_vectors})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx2 -mavx2 -mfma -mf16c)
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mprefer-vector-width=512)
  set(tiles -mamx-tile -mamx-int8 -mamx-bf16)
  if(OCTAVO_EMULATE)
    set(avx512 ${avx2} -Wno-psabi "SHELL:-include ${PROJECT_SOURCE_DIR}/tests/cpp/emulated_avx512.h")
    set(tiles "SHELL:-include ${PROJECT_SOURCE_DIR}/tests/cpp/emulated_tiles.h")
    target_compile_definitions(octavo_core PRIVATE OCTAVO_EMULATE=1)
  endif()
  octavo_kernels(avx2 SOURCES ${by_vectors} FLAGS ${avx2})
  octavo_kernels(avx512 SOURCES ${by_vectors} FLAGS ${avx512})
  octavo_kernels(amx SOURCES ${by_tiles} FLAGS ${avx512} ${tiles})
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  octavo_kernels(neon SOURCES ${by_vectors})
endif()
