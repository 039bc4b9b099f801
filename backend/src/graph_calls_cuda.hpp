// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

namespace encore::backend::impl {

/// CUDA 13 gave the calls on edges of graphs the signatures that CUDA 12 knew by other names.
inline cudaError_t capture_info(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                                std::size_t* count) {
#if CUDART_VERSION >= 13000
  return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, dependencies, edges, count);
#else
  return cudaStreamGetCaptureInfo_v3(stream, status, nullptr, nullptr, dependencies, edges, count);
#endif
}

inline cudaError_t set_capture_dependencies(cudaStream_t stream, std::vector<cudaGraphNode_t>& nodes) {
#if CUDART_VERSION >= 13000
  return cudaStreamUpdateCaptureDependencies(stream, nodes.data(), nullptr, nodes.size(),
                                             cudaStreamSetCaptureDependencies);
#else
  return cudaStreamUpdateCaptureDependencies(stream, nodes.data(), nodes.size(),
                                             cudaStreamSetCaptureDependencies);
#endif
}

/// `edges` may be nullptr where all are plain.
inline cudaError_t dependencies_of(cudaGraphNode_t node, cudaGraphNode_t* from, cudaGraphEdgeData* edges,
                                   std::size_t* count) {
#if CUDART_VERSION >= 13000
  return cudaGraphNodeGetDependencies(node, from, edges, count);
#else
  return cudaGraphNodeGetDependencies_v2(node, from, edges, count);
#endif
}

inline cudaError_t dependents_of(cudaGraphNode_t node, cudaGraphNode_t* to, cudaGraphEdgeData* edges,
                                 std::size_t* count) {
#if CUDART_VERSION >= 13000
  return cudaGraphNodeGetDependentNodes(node, to, edges, count);
#else
  return cudaGraphNodeGetDependentNodes_v2(node, to, edges, count);
#endif
}

inline cudaError_t add_dependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                                    std::size_t count) {
#if CUDART_VERSION >= 13000
  return cudaGraphAddDependencies(graph, from, to, nullptr, count);
#else
  return cudaGraphAddDependencies(graph, from, to, count);
#endif
}

}  // namespace encore::backend::impl
