# SPDX-License-Identifier: Apache-2.0
#
# OpenBLAS with its CBLAS interface: target EncoreOpenBLAS::openblas. Only a build with threads of its own has the locks
# that several callers need at once; what another one is found to be is not used (backend/src/blas_openblas.cpp). A static
# library goes before a shared one, because Debian lets the shared name of every flavour point to whichever flavour was
# chosen last.

set(flavours openblas-pthread openblas)
find_path(EncoreOpenBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES ${flavours})
find_library(EncoreOpenBLAS_LIBRARY NAMES libopenblas.a openblas NAMES_PER_DIR PATH_SUFFIXES ${flavours})
mark_as_advanced(EncoreOpenBLAS_INCLUDE_DIR EncoreOpenBLAS_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(EncoreOpenBLAS REQUIRED_VARS EncoreOpenBLAS_LIBRARY EncoreOpenBLAS_INCLUDE_DIR)

if(EncoreOpenBLAS_FOUND AND NOT TARGET EncoreOpenBLAS::openblas)
  add_library(EncoreOpenBLAS::openblas UNKNOWN IMPORTED)
  set_target_properties(EncoreOpenBLAS::openblas PROPERTIES
    IMPORTED_LOCATION "${EncoreOpenBLAS_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${EncoreOpenBLAS_INCLUDE_DIR}")
  if(EncoreOpenBLAS_LIBRARY MATCHES "\\.a$")
    set_target_properties(EncoreOpenBLAS::openblas PROPERTIES INTERFACE_LINK_LIBRARIES "Threads::Threads;m")
  endif()
endif()
