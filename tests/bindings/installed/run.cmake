# SPDX-License-Identifier: Apache-2.0
#
# Installs a build, builds the example in C against it, and runs it and the Python package from there.
#   cmake -D BUILD= -D WORK= -D GENERATOR= -D COMPILER= -D BACKEND= -D PYTHON= -D PACKAGE= -D RUN= -P run.cmake

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    string(REPLACE ";" " " command "${ARGV}")
    message(FATAL_ERROR "failed: ${command}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix")
run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${WORK}/build" -G "${GENERATOR}"
  "-DCMAKE_CXX_COMPILER=${COMPILER}" -DCMAKE_BUILD_TYPE=Release "-DEncore_ROOT=${WORK}/prefix")
run("${CMAKE_COMMAND}" --build "${WORK}/build")
if(RUN)
  run("${WORK}/build/example" ${BACKEND})
  if(PYTHON)
    run("${CMAKE_COMMAND}" -E env "PYTHONPATH=${WORK}/prefix/${PACKAGE}/.." "ENCORE_TEST_BACKEND=${BACKEND}"
      "${PYTHON}" "${CMAKE_CURRENT_LIST_DIR}/../test_example.py")
  endif()
endif()
file(REMOVE_RECURSE "${WORK}")
