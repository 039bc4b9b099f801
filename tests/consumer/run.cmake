# SPDX-License-Identifier: Apache-2.0
#
# The install test: installs a build of Encore, builds the consumer against it, and runs it unless it needs a GPU that
# may not be here.
#   cmake -D MODE=install -D BUILD= -D SOURCE= -D WORK= -D GENERATOR= -D COMPILER= -D RUN= -P run.cmake
# MODE=subdirectory only configures the consumer with Encore as a subdirectory: compiling it all again shows no more.

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    string(REPLACE ";" " " command "${ARGV}")
    message(FATAL_ERROR "failed: ${command}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
set(configure "${CMAKE_COMMAND}" -S "${SOURCE}/tests/consumer" -B "${WORK}/build" -G "${GENERATOR}"
    "-DCMAKE_CXX_COMPILER=${COMPILER}" -DCMAKE_BUILD_TYPE=Release)

if(MODE STREQUAL "subdirectory")
  run(${configure} "-DENCORE_SOURCE=${SOURCE}" "-DKokkos_ROOT=${KOKKOS}")
  return()
endif()

run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix")
run(${configure} "-DEncore_ROOT=${WORK}/prefix")
run("${CMAKE_COMMAND}" --build "${WORK}/build")
if(RUN)
  run("${WORK}/build/heat")
endif()

# A component that does not exist must be refused with its name.
execute_process(
  COMMAND "${CMAKE_COMMAND}" -D "CMAKE_PREFIX_PATH=${WORK}/prefix" -P "${CMAKE_CURRENT_LIST_DIR}/unknown_component.cmake"
  RESULT_VARIABLE result
  ERROR_VARIABLE message
  OUTPUT_QUIET)
if(result EQUAL 0 OR NOT message MATCHES "Encore has no component engine")
  message(FATAL_ERROR "an unknown component was not refused: ${message}")
endif()
