# SPDX-License-Identifier: Apache-2.0
#
# cuDNN and the headers of cudnn-frontend: target EncoreCuDNN::cudnn. cuDNN is looked for beside the CUDA toolkit too,
# the frontend also where scripts/setup keeps it. Call find_package(CUDAToolkit) first.

if(DEFINED ENV{ENCORE_CACHE})
  set(cache "$ENV{ENCORE_CACHE}")
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(cache "$ENV{XDG_CACHE_HOME}/encore")
else()
  set(cache "$ENV{HOME}/.cache/encore")
endif()
file(GLOB frontends "${cache}/cudnn-frontend-*")

find_path(EncoreCuDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} "${CUDAToolkit_BIN_DIR}/.." PATH_SUFFIXES include)
find_library(EncoreCuDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR} "${CUDAToolkit_BIN_DIR}/.." PATH_SUFFIXES lib64 lib)
find_path(EncoreCuDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h PATHS ${frontends} PATH_SUFFIXES include)
mark_as_advanced(EncoreCuDNN_INCLUDE_DIR EncoreCuDNN_LIBRARY EncoreCuDNN_FRONTEND_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(EncoreCuDNN
  REQUIRED_VARS EncoreCuDNN_LIBRARY EncoreCuDNN_INCLUDE_DIR EncoreCuDNN_FRONTEND_INCLUDE_DIR)

if(EncoreCuDNN_FOUND AND NOT TARGET EncoreCuDNN::cudnn)
  add_library(EncoreCuDNN::cudnn UNKNOWN IMPORTED)
  set_target_properties(EncoreCuDNN::cudnn PROPERTIES
    IMPORTED_LOCATION "${EncoreCuDNN_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${EncoreCuDNN_INCLUDE_DIR};${EncoreCuDNN_FRONTEND_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES CUDA::cudart)
endif()
