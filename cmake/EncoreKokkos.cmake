# SPDX-License-Identifier: Apache-2.0
#
# Kokkos, in this order: a target of the enclosing project, an installed one that CMake finds by its own rules
# (Kokkos_ROOT, CMAKE_PREFIX_PATH, ...), and as a last resort the one scripts/setup keeps in its cache.

# Where scripts/setup keeps what it brings.
function(encore_cache variable)
  if(DEFINED ENV{ENCORE_CACHE})
    set(${variable} "$ENV{ENCORE_CACHE}" PARENT_SCOPE)
  elseif(DEFINED ENV{XDG_CACHE_HOME})
    set(${variable} "$ENV{XDG_CACHE_HOME}/encore" PARENT_SCOPE)
  else()
    set(${variable} "$ENV{HOME}/.cache/encore" PARENT_SCOPE)
  endif()
endfunction()

if(NOT TARGET Kokkos::kokkos)
  find_package(Kokkos CONFIG QUIET)
endif()

if(NOT TARGET Kokkos::kokkos)
  encore_cache(cache)
  if(ENCORE_REQUIRE_CUDA)
    file(GLOB prefixes "${cache}/kokkos-*-cuda-*")
    set(variant cuda)
  else()
    file(GLOB prefixes "${cache}/kokkos-*-host")
    set(variant host)
  endif()
  find_package(Kokkos CONFIG QUIET PATHS ${prefixes} NO_DEFAULT_PATH)
  if(NOT Kokkos_FOUND)
    message(FATAL_ERROR "No Kokkos found: name an installed one by -DKokkos_ROOT=<prefix>, or run scripts/setup "
                        "${variant}, which builds one in ${cache}.")
  endif()
endif()

if(DEFINED Kokkos_VERSION AND Kokkos_VERSION VERSION_LESS 4.7)
  message(FATAL_ERROR "Kokkos ${Kokkos_VERSION} at ${Kokkos_DIR} is too old: Encore needs 4.7 or newer.")
endif()
if(ENCORE_REQUIRE_CUDA AND NOT Kokkos_ENABLE_CUDA)
  message(FATAL_ERROR "The Kokkos at ${Kokkos_DIR} has no CUDA, which ENCORE_REQUIRE_CUDA asks for: name one that "
                      "has by -DKokkos_ROOT=<prefix>, or run scripts/setup cuda.")
endif()
if(Kokkos_COMPILE_LANGUAGE STREQUAL "CUDA")
  message(FATAL_ERROR "The Kokkos at ${Kokkos_DIR} was built with Kokkos_ENABLE_COMPILE_AS_CMAKE_LANGUAGE, which "
                      "Encore does not support: use one built without it.")
endif()
# Until 5.0 the View on mdspan used [[no_unique_address]], which nvcc 12.9 and newer lay out differently on host and
# device: kernels then read garbage pointers (kokkos/mdspan pull requests 434 and 435; seen with 4.7.0 and CUDA 13.0).
if(Kokkos_ENABLE_CUDA AND DEFINED Kokkos_VERSION AND Kokkos_VERSION VERSION_LESS 5 AND NOT Kokkos_ENABLE_IMPL_VIEW_LEGACY)
  message(FATAL_ERROR "The views of the Kokkos ${Kokkos_VERSION} at ${Kokkos_DIR} are miscompiled by nvcc: use one built "
                      "with -DKokkos_ENABLE_IMPL_VIEW_LEGACY=ON, or Kokkos 4.7.1 or newer with its defaults.")
endif()
if(NOT Kokkos_ENABLE_SERIAL AND NOT Kokkos_ENABLE_OPENMP)
  message(FATAL_ERROR "The Kokkos at ${Kokkos_DIR} has no host backend that Encore uses: it needs Serial or OpenMP.")
endif()

# A static Kokkos without position independent code cannot go into a shared library. The linker would say so at the
# very end of the build; linking a shared library from the archive alone says so now.
if(BUILD_SHARED_LIBS AND UNIX AND NOT APPLE AND NOT DEFINED ENCORE_KOKKOS_IS_PIC)
  get_target_property(kokkos_type Kokkos::kokkoscore TYPE)
  get_target_property(kokkos_imported Kokkos::kokkoscore IMPORTED)
  if(kokkos_imported AND kokkos_type STREQUAL "STATIC_LIBRARY")
    foreach(configuration "" _RELEASE _RELWITHDEBINFO _NOCONFIG _NONE _DEBUG)
      get_target_property(archive Kokkos::kokkoscore IMPORTED_LOCATION${configuration})
      if(archive)
        break()
      endif()
    endforeach()
    execute_process(
      COMMAND "${CMAKE_CXX_COMPILER}" -shared -o "${CMAKE_BINARY_DIR}/CMakeFiles/kokkos_is_pic.so" -Wl,--whole-archive
              "${archive}" -Wl,--no-whole-archive
      RESULT_VARIABLE result
      ERROR_VARIABLE message)
    if(NOT result EQUAL 0 AND message MATCHES "recompile with -fPIC|relocation R_")
      message(FATAL_ERROR "BUILD_SHARED_LIBS is on, but the static Kokkos at ${Kokkos_DIR} was built without position "
                          "independent code: use one built with -DCMAKE_POSITION_INDEPENDENT_CODE=ON (Spack: "
                          "kokkos+pic), or a shared one.")
    endif()
  endif()
  set(ENCORE_KOKKOS_IS_PIC ON CACHE INTERNAL "The Kokkos found can go into a shared library")
endif()
