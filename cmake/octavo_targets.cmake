# Functions that define targets with the project's flags.

# Rounding is part of the contract: no fast-math, and a multiply is fused with an add only where the source says fma.
# Sanitizers look at what a kernel touches, not at its speed, and make optimisation take minutes. Left out are checks of
# every pointer for what AddressSanitizer or the processor notices anyway: they double the time once more.
if(OCTAVO_SANITIZE)
  set(optimization -O0)
  set(OCTAVO_SANITIZER_FLAGS -fsanitize=${OCTAVO_SANITIZE} -fno-sanitize=null,alignment,object-size,vptr
                             -fno-sanitize-recover=all -g1)
else()
  set(optimization -O3)
endif()
set(OCTAVO_FLAGS ${optimization} -ffp-contract=off -fno-math-errno -fno-trapping-math)

function(octavo_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra)
  if(OCTAVO_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

function(octavo_flags target)
  target_compile_options(${target} PRIVATE ${OCTAVO_FLAGS})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/csrc)
  octavo_warnings(${target})
  if(OCTAVO_SANITIZE)
    target_compile_options(${target} PUBLIC ${OCTAVO_SANITIZER_FLAGS})
    target_link_options(${target} PUBLIC -fsanitize=${OCTAVO_SANITIZE})
  endif()
endfunction()

# octavo_kernels(isa SOURCES … FLAGS …): kernel sources, compiled for one instruction set.
function(octavo_kernels isa)
  cmake_parse_arguments(arg "" "" "SOURCES;FLAGS" ${ARGN})
  set(target octavo_kernels_${isa})
  add_library(${target} OBJECT ${arg_SOURCES})
  string(TOUPPER ${isa} upper)
  target_compile_definitions(${target} PRIVATE OCTAVO_ISA_${upper}=1 OCTAVO_ISA_NAMESPACE=isa_${isa})
  target_compile_options(${target} PRIVATE ${arg_FLAGS})
  octavo_flags(${target})
  # GCC 12's own intrinsics start from a deliberately uninitialised register.
  target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized -Wno-uninitialized)
  target_sources(octavo_core PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()
