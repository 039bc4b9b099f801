# SPDX-License-Identifier: Apache-2.0
#
# The install test: installs a build of Encore, builds the consumer against it with CMake and, where there is a
# pkg-config file, with that alone, and runs it unless it needs a GPU that may not be here.
#   cmake -D MODE=install -D BUILD= -D SOURCE= -D WORK= -D GENERATOR= -D COMPILER= -D RUN= -P run.cmake
# MODE=subdirectory only configures the consumer with Encore as a subdirectory: compiling it all again shows no more.
# MODE=cuda_language builds the project with language CUDA against the installed build; CUDA_CMAKE is a CMake that can.

# scripts/test sets this on machines without a GPU: building and linking is then all that can be seen.
if(DEFINED ENV{ENCORE_CONSUMER_RUN})
  set(RUN "$ENV{ENCORE_CONSUMER_RUN}")
endif()

function(run)
  execute_process(COMMAND ${ARGV} WORKING_DIRECTORY "${WORK}" RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    string(REPLACE ";" " " command "${ARGV}")
    message(FATAL_ERROR "failed: ${command}")
  endif()
endfunction()

function(refuses sentence)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE message ERROR_VARIABLE message)
  string(REGEX REPLACE "[ \n]+" " " message "${message}") # CMake folds lines
  if(result EQUAL 0 OR NOT message MATCHES "${sentence}")
    message(FATAL_ERROR "not refused with \"${sentence}\": ${message}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
set(common -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}" -DCMAKE_BUILD_TYPE=Release)
set(configure "${CMAKE_COMMAND}" -S "${SOURCE}/tests/consumer" -B "${WORK}/build" ${common})

if(MODE STREQUAL "subdirectory")
  run(${configure} "-DENCORE_SOURCE=${SOURCE}" "-DKokkos_ROOT=${KOKKOS}")
  return()
endif()

run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix")

if(MODE STREQUAL "cuda_language")
  set(project -S "${SOURCE}/tests/consumer/cuda_language" -B "${WORK}/build" ${common} "-DEncore_ROOT=${WORK}/prefix"
    -DCMAKE_CUDA_ARCHITECTURES=${ARCHITECTURE})
  if(CMAKE_VERSION VERSION_LESS 3.25.2)
    refuses("needs CMake 3.25.2 or newer to use Encore" "${CMAKE_COMMAND}" ${project})
    file(REMOVE_RECURSE "${WORK}/build")
  endif()
  run("${CUDA_CMAKE}" ${project})
  run("${CUDA_CMAKE}" --build "${WORK}/build")
  if(RUN)
    run("${WORK}/build/rotation")
  endif()
  return()
endif()

run(${configure} "-DEncore_ROOT=${WORK}/prefix")
run("${CMAKE_COMMAND}" --build "${WORK}/build")
if(RUN)
  run("${WORK}/build/heat")
  run("${WORK}/build/reaction_diffusion")
endif()

# A component that does not exist must be refused with its name.
refuses("Encore has no component engine" "${CMAKE_COMMAND}" -D "CMAKE_PREFIX_PATH=${WORK}/prefix"
  -P "${CMAKE_CURRENT_LIST_DIR}/unknown_component.cmake")

# So must a Kokkos that is not the one the libraries were built with.
file(WRITE "${WORK}/other_kokkos/KokkosConfig.cmake" "set(Kokkos_VERSION 4.9.9)\nset(Kokkos_DEVICES SERIAL)\n")
refuses("Encore was built with Kokkos .* but the one found at .*other_kokkos is 4.9.9" ${configure} --fresh
  "-DEncore_ROOT=${WORK}/prefix" "-DKokkos_DIR=${WORK}/other_kokkos")

file(GLOB_RECURSE description "${WORK}/prefix/encore.pc")
if(NOT description)
  return() # CUDA
endif()
find_program(pkg_config NAMES pkg-config pkgconf REQUIRED)
get_filename_component(folder "${description}" DIRECTORY)
get_filename_component(libraries "${folder}" DIRECTORY)
execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env "PKG_CONFIG_PATH=${folder}" "${pkg_config}" --cflags --libs encore
  OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
run("${COMPILER}" -O1 "${SOURCE}/tests/consumer/reaction_diffusion.cpp" -o "${WORK}/by_pkg_config" ${flags})
if(RUN)
  run("${CMAKE_COMMAND}" -E env "LD_LIBRARY_PATH=${libraries}" "${WORK}/by_pkg_config")
endif()
