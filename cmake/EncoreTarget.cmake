# SPDX-License-Identifier: Apache-2.0
#
# encore_sources(<variable> <folder> [EXCLUDE <regex>...])
#   The .cpp files below <folder>, without those of a vendor library that is not there. A file's suffix says what it
#   needs: _cuda, _openblas, _cudnn, _nccl, _cutlass.
# encore_settings(<target> [PORTABLE])
#   Language level, warnings, host architecture and sanitizers, alike for every target. PORTABLE: no -march, for code that
#   gains nothing from it; host and CUDA builds then share its objects through ccache.
# encore_library(<name> [FOLDER <folder>] [LINK <target>...])
#   The library encore_<name> from src/, exported as Encore::<name>, with the public headers of <folder>/include/, or of
#   <name>/include/.

include(CheckCXXCompilerFlag)

set(ENCORE_HOST_LAUNCHER "" CACHE STRING
  "Compiler launcher, as in ccache, of what includes no Kokkos header; Kokkos' own launcher for CUDA takes no other")

if(ENCORE_HOST_ARCH)
  string(MAKE_C_IDENTIFIER "ENCORE_HAVE_MARCH_${ENCORE_HOST_ARCH}" result)
  check_cxx_compiler_flag("-march=${ENCORE_HOST_ARCH}" ${result})
  if(${result})
    set(ENCORE_MARCH_FLAG "-march=${ENCORE_HOST_ARCH}")
  else()
    message(STATUS "The compiler has no -march=${ENCORE_HOST_ARCH}: host code stays portable")
  endif()
endif()

function(encore_sources variable folder)
  cmake_parse_arguments(arg "" "" "EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp")
  foreach(vendor CUDA OPENBLAS CUDNN NCCL CUTLASS)
    if(NOT ENCORE_HAVE_${vendor})
      string(TOLOWER ${vendor} suffix)
      list(FILTER sources EXCLUDE REGEX "_${suffix}\\.cpp$")
    endif()
  endforeach()
  foreach(pattern IN LISTS arg_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${pattern}")
  endforeach()
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

function(encore_settings target)
  cmake_parse_arguments(arg "PORTABLE" "" "" ${ARGN})
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -fno-math-errno)
  if(NOT arg_PORTABLE)
    target_compile_options(${target} PRIVATE ${ENCORE_MARCH_FLAG})
  elseif(ENCORE_HOST_LAUNCHER)
    set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER "${ENCORE_HOST_LAUNCHER}")
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict) # false alarms in std::string: GCC bug 105329
  endif()
  if(ENCORE_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(ENCORE_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=${ENCORE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${ENCORE_SANITIZE})
  endif()
endfunction()

function(encore_include_directories target folder)
  target_include_directories(${target} PUBLIC
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/${folder}/include>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
endfunction()

# The objects of sources that include no Kokkos header: in a CUDA build they go to the host compiler, not to nvcc.
function(encore_host_objects target)
  add_library(${target} OBJECT ${ARGN})
  encore_settings(${target} PORTABLE)
  target_link_libraries(${target} PRIVATE fmt::fmt)
  target_compile_definitions(${target} PRIVATE FMT_USE_CONSTEXPR=1)
endfunction()

function(encore_library name)
  cmake_parse_arguments(arg "" "FOLDER" "LINK;SOURCES" ${ARGN})
  set(target encore_${name})
  if(NOT arg_FOLDER)
    set(arg_FOLDER ${name})
  endif()
  if(NOT arg_SOURCES)
    file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/none.cpp" "")
    set(arg_SOURCES "${CMAKE_CURRENT_BINARY_DIR}/none.cpp")
  endif()
  add_library(${target} ${arg_SOURCES})
  add_library(Encore::${name} ALIAS ${target})
  encore_settings(${target})
  encore_include_directories(${target} ${arg_FOLDER})
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/src")
  target_link_libraries(${target} PUBLIC ${arg_LINK})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name}
    DEFINE_SYMBOL ""
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    INSTALL_RPATH "$ORIGIN")
  set_property(GLOBAL APPEND PROPERTY ENCORE_LIBRARIES ${target})
  set_property(GLOBAL APPEND PROPERTY ENCORE_COMPONENTS ${name})
endfunction()
