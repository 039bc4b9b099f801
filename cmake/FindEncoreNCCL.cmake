# SPDX-License-Identifier: Apache-2.0
#
# NCCL: target EncoreNCCL::nccl. Looked for beside the CUDA toolkit too. Call find_package(CUDAToolkit) first.

find_path(EncoreNCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} "${CUDAToolkit_BIN_DIR}/.." PATH_SUFFIXES include)
find_library(EncoreNCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} "${CUDAToolkit_BIN_DIR}/.." PATH_SUFFIXES lib64 lib)
mark_as_advanced(EncoreNCCL_INCLUDE_DIR EncoreNCCL_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(EncoreNCCL REQUIRED_VARS EncoreNCCL_LIBRARY EncoreNCCL_INCLUDE_DIR)

if(EncoreNCCL_FOUND AND NOT TARGET EncoreNCCL::nccl)
  add_library(EncoreNCCL::nccl UNKNOWN IMPORTED)
  set_target_properties(EncoreNCCL::nccl PROPERTIES
    IMPORTED_LOCATION "${EncoreNCCL_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${EncoreNCCL_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES CUDA::cudart)
endif()
