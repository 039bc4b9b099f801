# SPDX-License-Identifier: Apache-2.0
#
# The headers of CUTLASS: target EncoreCutlass::cutlass. An installed CUTLASS that CMake finds by its own rules goes
# first, then other places with its headers, and at last the ones that scripts/setup keeps.

encore_cache(cache)
file(GLOB copies "${cache}/cutlass-*")

find_package(NvidiaCutlass CONFIG QUIET)
if(TARGET nvidia::cutlass::cutlass)
  get_target_property(installed nvidia::cutlass::cutlass INTERFACE_INCLUDE_DIRECTORIES)
endif()
find_path(EncoreCutlass_INCLUDE_DIR cutlass/cutlass.h HINTS ${installed} PATHS ${copies} PATH_SUFFIXES include)
mark_as_advanced(EncoreCutlass_INCLUDE_DIR)

if(EncoreCutlass_INCLUDE_DIR)
  file(STRINGS "${EncoreCutlass_INCLUDE_DIR}/cutlass/version.h" lines REGEX "#define CUTLASS_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX REPLACE "[^0-9]+" "." EncoreCutlass_VERSION "${lines}")
  string(REGEX REPLACE "^\\.|\\.$" "" EncoreCutlass_VERSION "${EncoreCutlass_VERSION}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(EncoreCutlass
  REQUIRED_VARS EncoreCutlass_INCLUDE_DIR
  VERSION_VAR EncoreCutlass_VERSION)

if(EncoreCutlass_FOUND AND NOT TARGET EncoreCutlass::cutlass)
  add_library(EncoreCutlass::cutlass INTERFACE IMPORTED)
  set_target_properties(EncoreCutlass::cutlass PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${EncoreCutlass_INCLUDE_DIR}")
endif()
