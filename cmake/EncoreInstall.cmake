# SPDX-License-Identifier: Apache-2.0
#
# What find_package(Encore) needs: targets, configuration, version and settings. Skipped when Encore is part of another
# project that installs nothing of it.

include(CMakePackageConfigHelpers)
if(NOT ENCORE_INSTALL)
  return()
endif()

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Encore")
get_property(libraries GLOBAL PROPERTY ENCORE_LIBRARIES)
install(TARGETS ${libraries} EXPORT EncoreTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(EXPORT EncoreTargets NAMESPACE Encore:: DESTINATION "${package_dir}")

set(folders backend kernels graph model)
if(ENCORE_ENABLE_C_API)
  list(APPEND folders bindings/c)
endif()
foreach(folder IN LISTS folders)
  if(IS_DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}/include")
    install(DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  endif()
endforeach()
install(DIRECTORY "${ENCORE_GENERATED_INCLUDE_DIR}/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")

get_target_property(ENCORE_SHARED encore_backend TYPE)
string(COMPARE EQUAL "${ENCORE_SHARED}" "SHARED_LIBRARY" ENCORE_SHARED)
# The engines that the libraries were linked with go first with their users too. Of cudnn-frontend only the build needs the
# headers, so that where they were is enough.
set(ENCORE_ENGINE_PATHS "")
foreach(variable EncoreOpenBLAS_LIBRARY EncoreOpenBLAS_INCLUDE_DIR EncoreCuDNN_LIBRARY EncoreCuDNN_INCLUDE_DIR
    EncoreNCCL_LIBRARY EncoreNCCL_INCLUDE_DIR EncorePCRE2_LIBRARY EncorePCRE2_INCLUDE_DIR EncoreUtf8proc_LIBRARY
    EncoreUtf8proc_INCLUDE_DIR)
  if(${variable})
    string(APPEND ENCORE_ENGINE_PATHS
      "if(NOT DEFINED ${variable} AND EXISTS \"${${variable}}\")\n  set(${variable} \"${${variable}}\")\nendif()\n")
  endif()
endforeach()
if(ENCORE_HAVE_CUDNN)
  string(APPEND ENCORE_ENGINE_PATHS "set(EncoreCuDNN_FRONTEND_INCLUDE_DIR \"${EncoreCuDNN_FRONTEND_INCLUDE_DIR}\")\n")
endif()
if(TARGET Kokkos::kokkos AND DEFINED Kokkos_DIR)
  set(ENCORE_KOKKOS_DIR "${Kokkos_DIR}")
endif()
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/EncoreConfig.cmake.in" "${PROJECT_BINARY_DIR}/EncoreConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/EncoreConfigVersion.cmake" COMPATIBILITY SameMajorVersion)
get_property(ENCORE_COMPONENTS GLOBAL PROPERTY ENCORE_COMPONENTS)
list(JOIN ENCORE_COMPONENTS " " ENCORE_COMPONENTS)
configure_file("${PROJECT_SOURCE_DIR}/cmake/EncoreSettings.cmake.in" "${PROJECT_BINARY_DIR}/EncoreSettings.cmake" @ONLY)
install(FILES
  "${PROJECT_BINARY_DIR}/EncoreConfig.cmake"
  "${PROJECT_BINARY_DIR}/EncoreConfigVersion.cmake"
  "${PROJECT_BINARY_DIR}/EncoreSettings.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/EncoreCudaLanguage.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindEncoreOpenBLAS.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindEncoreCuDNN.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindEncoreNCCL.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindEncorePCRE2.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindEncoreUtf8proc.cmake"
  DESTINATION "${package_dir}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
include(EncorePkgConfig)
