# SPDX-License-Identifier: Apache-2.0
#
# Everything Encore links. Sets ENCORE_HAVE_CUDA, ENCORE_HAVE_OPENBLAS, ENCORE_HAVE_CUDNN, ENCORE_HAVE_NCCL and
# ENCORE_HAVE_CUTLASS.

include(EncoreKokkos)
find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)

set(ENCORE_HAVE_CUDA OFF)
set(ENCORE_HAVE_OPENBLAS OFF)
set(ENCORE_HAVE_CUDNN OFF)
set(ENCORE_HAVE_NCCL OFF)
set(ENCORE_HAVE_CUTLASS OFF)
if(Kokkos_ENABLE_CUDA)
  set(ENCORE_HAVE_CUDA ON)
  find_package(CUDAToolkit REQUIRED)
endif()

if(ENCORE_ENABLE_OPENBLAS)
  find_package(EncoreOpenBLAS QUIET)
  set(ENCORE_HAVE_OPENBLAS ${EncoreOpenBLAS_FOUND})
endif()
if(ENCORE_HAVE_CUDA AND ENCORE_ENABLE_CUDNN)
  find_package(EncoreCuDNN QUIET)
  set(ENCORE_HAVE_CUDNN ${EncoreCuDNN_FOUND})
endif()
if(ENCORE_HAVE_CUDA AND ENCORE_ENABLE_NCCL)
  find_package(EncoreNCCL QUIET)
  set(ENCORE_HAVE_NCCL ${EncoreNCCL_FOUND})
endif()
# Its kernels are Hopper's own.
if(ENCORE_HAVE_CUDA AND ENCORE_ENABLE_CUTLASS AND (Kokkos_ARCH_HOPPER90 OR "HOPPER90" IN_LIST Kokkos_ARCH))
  find_package(EncoreCutlass 4.2 QUIET)
  set(ENCORE_HAVE_CUTLASS ${EncoreCutlass_FOUND})
endif()
