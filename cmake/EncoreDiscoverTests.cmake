# SPDX-License-Identifier: Apache-2.0
#
# encore_discover_tests(<target> PREFIX <text> LABELS <label>...)
#
# One ctest for each doctest case of a program, found when ctest starts and not when the program is built: a machine
# without a GPU can then build a CUDA test program. Run by ctest, this file is the finding part.

if(NOT CMAKE_PROJECT_NAME)
  # In: program, prefix, labels, list.
  if(NOT EXISTS "${program}")
    add_test("${prefix}: not built" "${program}")
    return()
  endif()
  execute_process(COMMAND "${program}" --list-test-cases --no-colors=true
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    add_test("${prefix}: cannot list its test cases" "${program}" --list-test-cases)
    return()
  endif()
  set(script "")
  # Not a CMake list: names may hold semicolons and brackets.
  while(output MATCHES "^([^\n]*)\n")
    set(name "${CMAKE_MATCH_1}")
    string(LENGTH "${CMAKE_MATCH_0}" length)
    string(SUBSTRING "${output}" ${length} -1 output)
    if(name STREQUAL "" OR name MATCHES "^\\[doctest\\] |^=+$")
      continue()
    endif()
    string(REPLACE "," "\\," filter "${name}")
    string(APPEND script
      "add_test([==[${prefix}: ${name}]==] [==[${program}]==] [==[--test-case=${filter}]==])\n"
      "set_tests_properties([==[${prefix}: ${name}]==] PROPERTIES LABELS [==[${labels}]==] TIMEOUT 300 "
      "ENVIRONMENT_MODIFICATION [==[OMP_NUM_THREADS=set:2;OMP_WAIT_POLICY=set:passive;OMP_PROC_BIND=set:false]==])\n")
  endwhile()
  file(WRITE "${list}" "${script}")
  include("${list}")
  return()
endif()

set(ENCORE_DISCOVER_TESTS_SCRIPT "${CMAKE_CURRENT_LIST_FILE}")

function(encore_discover_tests target)
  cmake_parse_arguments(arg "" "PREFIX" "LABELS" ${ARGN})
  set(include_file "${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake")
  file(GENERATE OUTPUT "${include_file}" CONTENT
"set(program [==[$<TARGET_FILE:${target}>]==])
set(prefix [==[${arg_PREFIX}]==])
set(labels [==[${arg_LABELS}]==])
set(list [==[${CMAKE_CURRENT_BINARY_DIR}/${target}_tests.cmake]==])
include([==[${ENCORE_DISCOVER_TESTS_SCRIPT}]==])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${include_file}")
endfunction()
