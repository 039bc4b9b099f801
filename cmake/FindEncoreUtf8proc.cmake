# SPDX-License-Identifier: Apache-2.0
#
# utf8proc, which normalizes Unicode text: target EncoreUtf8proc::utf8proc.

find_path(EncoreUtf8proc_INCLUDE_DIR utf8proc.h)
find_library(EncoreUtf8proc_LIBRARY NAMES utf8proc utf8proc_static)
mark_as_advanced(EncoreUtf8proc_INCLUDE_DIR EncoreUtf8proc_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(EncoreUtf8proc REQUIRED_VARS EncoreUtf8proc_LIBRARY EncoreUtf8proc_INCLUDE_DIR)

if(EncoreUtf8proc_FOUND AND NOT TARGET EncoreUtf8proc::utf8proc)
  add_library(EncoreUtf8proc::utf8proc UNKNOWN IMPORTED)
  set_target_properties(EncoreUtf8proc::utf8proc PROPERTIES
    IMPORTED_LOCATION "${EncoreUtf8proc_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${EncoreUtf8proc_INCLUDE_DIR}")
endif()
