# SPDX-License-Identifier: Apache-2.0
#
# PCRE2's library of 8-bit code units: target EncorePCRE2::pcre2.

find_path(EncorePCRE2_INCLUDE_DIR pcre2.h)
find_library(EncorePCRE2_LIBRARY NAMES pcre2-8 pcre2-8-static)
mark_as_advanced(EncorePCRE2_INCLUDE_DIR EncorePCRE2_LIBRARY)
if(EncorePCRE2_INCLUDE_DIR)
  file(STRINGS "${EncorePCRE2_INCLUDE_DIR}/pcre2.h" lines REGEX "^#define PCRE2_(MAJOR|MINOR) +[0-9]+$")
  string(REGEX REPLACE "[^0-9]*PCRE2_MAJOR +([0-9]+).*PCRE2_MINOR +([0-9]+)" "\\1.\\2" EncorePCRE2_VERSION "${lines}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(EncorePCRE2 REQUIRED_VARS EncorePCRE2_LIBRARY EncorePCRE2_INCLUDE_DIR
  VERSION_VAR EncorePCRE2_VERSION)

if(EncorePCRE2_FOUND AND NOT TARGET EncorePCRE2::pcre2)
  add_library(EncorePCRE2::pcre2 UNKNOWN IMPORTED)
  set_target_properties(EncorePCRE2::pcre2 PROPERTIES
    IMPORTED_LOCATION "${EncorePCRE2_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${EncorePCRE2_INCLUDE_DIR}")
endif()
