# SPDX-License-Identifier: Apache-2.0
#
# The table at the end of configure.

function(encore_summary_line name value)
  string(LENGTH "${name}" length)
  math(EXPR padding "18 - ${length}")
  string(REPEAT " " ${padding} space)
  string(REPLACE ";" " " value "${value}")
  message(STATUS "  ${name}${space}${value}")
endfunction()

if(PROJECT_IS_TOP_LEVEL)
  message(STATUS "Encore ${PROJECT_VERSION}")
  encore_summary_line("build type" "${CMAKE_BUILD_TYPE}")
  encore_summary_line("compiler" "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  encore_summary_line("host -march" "${ENCORE_HOST_ARCH}")
  encore_summary_line("sanitizers" "${ENCORE_SANITIZE}")
  encore_summary_line("Kokkos" "${Kokkos_VERSION} (${Kokkos_DEVICES}) ${Kokkos_ARCH}")
  encore_summary_line("" "${Kokkos_DIR}")
  encore_summary_line("CUDA" "${ENCORE_HAVE_CUDA} ${CUDAToolkit_VERSION}")
  encore_summary_line("OpenBLAS" "${ENCORE_HAVE_OPENBLAS} ${EncoreOpenBLAS_LIBRARY}")
  encore_summary_line("cuDNN attention" "${ENCORE_HAVE_CUDNN}")
  encore_summary_line("NCCL" "${ENCORE_HAVE_NCCL}")
  encore_summary_line("shared libraries" "${BUILD_SHARED_LIBS}")
  encore_summary_line("tests" "${ENCORE_ENABLE_TESTS}")
  encore_summary_line("benchmarks" "${ENCORE_ENABLE_BENCHMARKS}")
  encore_summary_line("command" "${ENCORE_ENABLE_TOOLS}")
endif()
