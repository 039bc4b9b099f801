// SPDX-License-Identifier: Apache-2.0
#include "graph_kernels_cuda.hpp"

#include "graph_calls_cuda.hpp"

#include <encore/backend/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace encore::backend::impl {

namespace {

constexpr int threads = 256;

void check(cudaError_t status, const std::string& graph) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  throw CaptureError("recording '" + graph + "': replacing a memory node: CUDA says " +
                     cudaGetErrorName(status) + ", " + cudaGetErrorString(status));
}

struct Fill {
  std::byte* to;
  std::size_t bytes;
  std::uint32_t pattern;  ///< the value, repeated over four bytes
};

struct Copy {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

__global__ void __launch_bounds__(threads) fill(const Fill fill) {
  const std::size_t begin = (std::size_t(blockIdx.x) * threads + threadIdx.x) * 16;
  if (begin >= fill.bytes) return;
  if (begin + 16 <= fill.bytes && reinterpret_cast<std::uintptr_t>(fill.to) % 16 == 0) {
    *reinterpret_cast<uint4*>(fill.to + begin) =
        make_uint4(fill.pattern, fill.pattern, fill.pattern, fill.pattern);
    return;
  }
  // Elements are aligned to their size, so the pattern's bytes go by the distance from the beginning.
  for (std::size_t i = begin; i < begin + 16 && i < fill.bytes; ++i)
    fill.to[i] = static_cast<std::byte>(fill.pattern >> (8 * (i % 4)));
}

__global__ void __launch_bounds__(threads) copy(const Copy copy) {
  const std::size_t begin = (std::size_t(blockIdx.x) * threads + threadIdx.x) * 16;
  if (begin >= copy.bytes) return;
  const auto addresses =
      reinterpret_cast<std::uintptr_t>(copy.to) | reinterpret_cast<std::uintptr_t>(copy.from);
  if (begin + 16 <= copy.bytes && addresses % 16 == 0) {
    *reinterpret_cast<uint4*>(copy.to + begin) = *reinterpret_cast<const uint4*>(copy.from + begin);
    return;
  }
  for (std::size_t i = begin; i < begin + 16 && i < copy.bytes; ++i) copy.to[i] = copy.from[i];
}

std::optional<Fill> fill_of(cudaGraphNode_t node, const std::string& graph) {
  cudaMemsetParams set{};
  check(cudaGraphMemsetNodeGetParams(node, &set), graph);
  if (set.height > 1 || set.width == 0) return std::nullopt;
  const std::uint32_t repeated = set.elementSize == 1   ? (set.value & 0xFFU) * 0x01010101U
                                 : set.elementSize == 2 ? (set.value & 0xFFFFU) * 0x00010001U
                                                        : set.value;
  return Fill{static_cast<std::byte*>(set.dst), set.width * set.elementSize, repeated};
}

std::optional<Copy> copy_of(cudaGraphNode_t node, const std::string& graph) {
  cudaMemcpy3DParms parameters{};
  check(cudaGraphMemcpyNodeGetParams(node, &parameters), graph);
  const auto& [array_from, from_place, from, array_to, to_place, to, extent, kind] = parameters;
  if (kind != cudaMemcpyDeviceToDevice || array_from != nullptr || array_to != nullptr || extent.height > 1 ||
      extent.depth > 1 || from_place.y + from_place.z + to_place.y + to_place.z > 0 || extent.width == 0)
    return std::nullopt;
  return Copy{static_cast<std::byte*>(to.ptr) + to_place.x,
              static_cast<const std::byte*>(from.ptr) + from_place.x, extent.width};
}

template <class Kernel, class Work>
void replace(cudaGraph_t graph, cudaGraphNode_t node, Kernel* kernel, Work work, const std::string& name) {
  std::size_t before = 0, after = 0;
  check(dependencies_of(node, nullptr, nullptr, &before), name);
  check(dependents_of(node, nullptr, nullptr, &after), name);
  std::vector<cudaGraphNode_t> from(before), to(after);
  std::vector<cudaGraphEdgeData> edges(std::max(before, after));
  if (before > 0) check(dependencies_of(node, from.data(), edges.data(), &before), name);
  if (after > 0) check(dependents_of(node, to.data(), edges.data(), &after), name);
  void* arguments[] = {&work};
  cudaKernelNodeParams parameters{};
  parameters.func = reinterpret_cast<void*>(kernel);
  parameters.gridDim = dim3(static_cast<unsigned>((work.bytes + threads * 16 - 1) / (threads * 16)));
  parameters.blockDim = dim3(threads);
  parameters.kernelParams = arguments;
  cudaGraphNode_t added = nullptr;
  check(cudaGraphAddKernelNode(&added, graph, from.data(), before, &parameters), name);
  check(cudaGraphDestroyNode(node), name);
  const std::vector<cudaGraphNode_t> sources(after, added);
  if (after > 0) check(add_dependencies(graph, sources.data(), to.data(), after), name);
}

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph, const std::string& name) {
  std::size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count), name);
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) check(cudaGraphGetNodes(graph, nodes.data(), &count), name);
  return nodes;
}

}  // namespace

std::size_t replace_memory_nodes(cudaGraph_t graph, const std::string& name) {
  std::size_t left = 0;
  for (const cudaGraphNode_t node : nodes_of(graph, name)) {
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(node, &type), name);
    if (type == cudaGraphNodeTypeMemset) {
      const auto work = fill_of(node, name);
      if (work) replace(graph, node, &fill, *work, name);
      if (!work) ++left;
    } else if (type == cudaGraphNodeTypeMemcpy) {
      const auto work = copy_of(node, name);
      if (work) replace(graph, node, &copy, *work, name);
      if (!work) ++left;
    }
  }
  return left;
}

std::size_t longest_chain(cudaGraph_t graph, const std::string& name) {
  std::unordered_map<cudaGraphNode_t, std::size_t> waits, length;
  std::vector<cudaGraphNode_t> ready;
  const std::vector<cudaGraphNode_t> nodes = nodes_of(graph, name);
  for (const cudaGraphNode_t node : nodes) {
    check(dependencies_of(node, nullptr, nullptr, &waits[node]), name);
    if (waits[node] == 0) ready.push_back(node);
  }
  std::size_t longest = 0;
  while (!ready.empty()) {
    const cudaGraphNode_t node = ready.back();
    ready.pop_back();
    const std::size_t own = ++length[node];
    longest = std::max(longest, own);
    std::size_t after = 0;
    check(dependents_of(node, nullptr, nullptr, &after), name);
    std::vector<cudaGraphNode_t> next(after);
    std::vector<cudaGraphEdgeData> edges(after);
    if (after > 0) check(dependents_of(node, next.data(), edges.data(), &after), name);
    for (const cudaGraphNode_t dependent : next) {
      length[dependent] = std::max(length[dependent], own);
      if (--waits[dependent] == 0) ready.push_back(dependent);
    }
  }
  return longest;
}

}  // namespace encore::backend::impl
