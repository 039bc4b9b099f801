# SPDX-License-Identifier: Apache-2.0
#
# Configuring with a Kokkos that cannot work ends at once, with a sentence that says what to do. Each Kokkos here is a
# configuration file that claims to be one.
#   cmake -D SOURCE= -D WORK= -D GENERATOR= -D COMPILER= -P refusals.cmake

file(REMOVE_RECURSE "${WORK}")

function(refuses name sentence configuration)
  set(folder "${WORK}/${name}")
  if(configuration)
    file(WRITE "${folder}/kokkos/KokkosConfig.cmake"
      "set(Kokkos_VERSION 4.7.1)\nset(Kokkos_ENABLE_SERIAL ON)\nadd_library(Kokkos::kokkos INTERFACE IMPORTED)\n${configuration}")
  endif()
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env "ENCORE_CACHE=${folder}/empty"
            "${CMAKE_COMMAND}" -S "${SOURCE}" -B "${folder}/build" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
            "-DKokkos_DIR=${folder}/kokkos" ${ARGN}
    RESULT_VARIABLE result OUTPUT_VARIABLE message ERROR_VARIABLE message)
  string(REGEX REPLACE "[ \n]+" " " message "${message}") # CMake folds lines
  if(result EQUAL 0 OR NOT message MATCHES "${sentence}")
    message(SEND_ERROR "${name}: not refused with \"${sentence}\": ${message}")
  else()
    message(STATUS "${name}: refused")
  endif()
endfunction()

refuses(none "No Kokkos found: name an installed one by -DKokkos_ROOT=<prefix>, or run scripts/setup host" ""
  -DCMAKE_DISABLE_FIND_PACKAGE_Kokkos=ON)
refuses(old "Kokkos 4.6.2 at .* is too old: Encore needs 4.7 or newer" "set(Kokkos_VERSION 4.6.2)")
refuses(without_cuda "has no CUDA, which ENCORE_REQUIRE_CUDA asks for" "set(Kokkos_ENABLE_CUDA OFF)"
  -DENCORE_REQUIRE_CUDA=ON)
refuses(without_host "has no host backend that Encore uses: it needs Serial or OpenMP" "set(Kokkos_ENABLE_SERIAL OFF)")
refuses(cuda_language "was built with Kokkos_ENABLE_COMPILE_AS_CMAKE_LANGUAGE"
  "set(Kokkos_ENABLE_CUDA ON)\nset(Kokkos_ENABLE_IMPL_VIEW_LEGACY ON)\nset(Kokkos_COMPILE_LANGUAGE CUDA)")
refuses(mdspan_views "views of the Kokkos 4.7.0 at .* are miscompiled by nvcc: use one built with"
  "set(Kokkos_VERSION 4.7.0)\nset(Kokkos_ENABLE_CUDA ON)")

# A static archive without position independent code, as the default Kokkos is.
file(WRITE "${WORK}/core.cpp" "static int table[4];\nint* kokkos_entry(int i) { return &table[i]; }\n")
execute_process(COMMAND "${COMPILER}" -c -fno-pic -fno-pie -O1 "${WORK}/core.cpp" -o "${WORK}/core.o"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ar rcs "${WORK}/libkokkoscore.a" "${WORK}/core.o" COMMAND_ERROR_IS_FATAL ANY)
refuses(not_pic "BUILD_SHARED_LIBS is on, but the static Kokkos at .* without position independent code"
  "add_library(Kokkos::kokkoscore STATIC IMPORTED)
set_target_properties(Kokkos::kokkoscore PROPERTIES IMPORTED_LOCATION \"${WORK}/libkokkoscore.a\")"
  -DBUILD_SHARED_LIBS=ON)
