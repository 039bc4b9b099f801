# SPDX-License-Identifier: Apache-2.0
#
# What .cu files of a project with language CUDA need to use Encore; .cpp files go through Kokkos' launch compiler.
#   encore_cuda_language_problem(<variable>)   why it cannot work, or nothing
#   encore_cuda_language(<target>)             compile options and language level for those who link the target

function(encore_cuda_language_problem variable)
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  set(${variable} "" PARENT_SCOPE)
  # Older ones know no flag for it, and would say so of some target or other.
  if("CUDA" IN_LIST languages AND CMAKE_VERSION VERSION_LESS 3.25.2)
    set(${variable} "A project with language CUDA needs CMake 3.25.2 or newer to use Encore, which is C++20; this is ${CMAKE_VERSION}."
      PARENT_SCOPE)
  endif()
endfunction()

function(encore_cuda_language target)
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(NOT "CUDA" IN_LIST languages)
    return()
  endif()
  set_property(TARGET ${target} APPEND PROPERTY INTERFACE_COMPILE_FEATURES cuda_std_20)
  # As Kokkos' nvcc_wrapper has them.
  set(options --extended-lambda --expt-relaxed-constexpr)
  if(Kokkos_ENABLE_OPENMP)
    list(APPEND options "-Xcompiler=${OpenMP_CXX_FLAGS}")
  endif()
  set_property(TARGET ${target} APPEND PROPERTY INTERFACE_COMPILE_OPTIONS "$<$<COMPILE_LANGUAGE:CUDA>:${options}>")
endfunction()
