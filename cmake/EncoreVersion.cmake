# SPDX-License-Identifier: Apache-2.0
#
# <encore/backend/version.hpp> from its template, and a source that holds the git revision. That one is looked up at
# every build and written only when it differs; -DENCORE_GIT_REVISION=<text> fixes it. An archive made by git archive
# carries its commit in archive_revision.txt.
# Run as a script (cmake -D SOURCE_DIR= -D OUTPUT= [-D REVISION=] -P EncoreVersion.cmake) this file writes the source.

if(CMAKE_SCRIPT_MODE_FILE)
  # A folder without .git may lie inside another repository, whose revision would be a lie.
  if(NOT REVISION AND EXISTS "${SOURCE_DIR}/.git")
    execute_process(
      COMMAND git -C "${SOURCE_DIR}" describe --always --abbrev=12 --dirty --exclude "*"
      OUTPUT_VARIABLE REVISION
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT REVISION)
    file(STRINGS "${SOURCE_DIR}/cmake/archive_revision.txt" line LIMIT_COUNT 1 REGEX "^[0-9a-f]+$")
    string(SUBSTRING "${line}" 0 12 REVISION)
  endif()
  if(NOT REVISION)
    set(REVISION unknown)
  endif()
  set(text "// Written by cmake/EncoreVersion.cmake: do not edit.
#include <encore/backend/version.hpp>

std::string_view encore::backend::git_revision() noexcept { return \"${REVISION}\"; }
")
  file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "${text}" @ONLY) # leaves the file alone when nothing changed
  return()
endif()

set(ENCORE_GIT_REVISION "" CACHE STRING "The git revision to report; empty: ask git at every build")
set(ENCORE_GENERATED_INCLUDE_DIR "${PROJECT_BINARY_DIR}/generated/include")
set(ENCORE_GIT_REVISION_SOURCE "${PROJECT_BINARY_DIR}/generated/git_revision.cpp")

math(EXPR ENCORE_VERSION_NUMBER
     "${PROJECT_VERSION_MAJOR} * 10000 + ${PROJECT_VERSION_MINOR} * 100 + ${PROJECT_VERSION_PATCH}")
configure_file("${CMAKE_CURRENT_LIST_DIR}/version.hpp.in" "${ENCORE_GENERATED_INCLUDE_DIR}/encore/backend/version.hpp"
               @ONLY)
add_custom_target(encore_git_revision
  COMMAND "${CMAKE_COMMAND}" -D "SOURCE_DIR=${PROJECT_SOURCE_DIR}" -D "OUTPUT=${ENCORE_GIT_REVISION_SOURCE}"
          -D "REVISION=${ENCORE_GIT_REVISION}" -P "${CMAKE_CURRENT_LIST_FILE}"
  BYPRODUCTS "${ENCORE_GIT_REVISION_SOURCE}"
  COMMENT "Looking up the git revision"
  VERBATIM)
