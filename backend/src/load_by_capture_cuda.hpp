// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/launch_cuda.hpp>

namespace encore::backend::impl {

/// Has the driver load the kernels that a vendor library launches, without running them: the launches are
/// captured into a graph that is thrown away. Relaxed, since loading may allocate. For prime mode.
template <class Launch>
void load_by_capture(cudaStream_t stream, const char* label, const Launch& launch) {
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), label);
  cudaGraph_t graph = nullptr;
  try {
    launch();
  } catch (...) {
    (void)cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &graph), label);
  (void)cudaGraphDestroy(graph);
}

}  // namespace encore::backend::impl
