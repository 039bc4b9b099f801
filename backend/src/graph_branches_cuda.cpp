// SPDX-License-Identifier: Apache-2.0
#include "graph_branches_cuda.hpp"

#include "graph_calls_cuda.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/launch_cuda.hpp>

#include <algorithm>
#include <utility>

namespace encore::backend::impl {

namespace {

void check(cudaError_t status, const std::string& graph) {
  if (status != cudaSuccess) check_cuda(status, ("ordering the nodes of '" + graph + "'").c_str());
}

/// A launch of more bytes gains nothing by being there early, but its blocks, waiting, keep those of other branches out.
constexpr std::ptrdiff_t most_bytes_of_early_launch = std::ptrdiff_t(4) << 20;

bool is_short(Accesses accesses) {
  std::ptrdiff_t bytes = 0;
  for (const Access& access : accesses) bytes += access.end - access.begin;
  return accesses.size() > 0 && bytes <= most_bytes_of_early_launch;
}

bool is_kernel(cudaGraphNode_t node) {
  cudaGraphNodeType type{};
  return cudaGraphNodeGetType(node, &type) == cudaSuccess && type == cudaGraphNodeTypeKernel;
}

}  // namespace

/// Of each branch the last operation that this one must wait for.
std::array<std::int64_t, branch_count> GraphBranches::last_of_branches(std::uint32_t operation) const {
  std::array<std::int64_t, branch_count> last{none, none, none};
  for (const std::uint32_t before : dependences_.predecessors(operation)) {
    std::int64_t& of_branch = last[static_cast<std::size_t>(operations_[before].branch)];
    of_branch = std::max<std::int64_t>(of_branch, before);
  }
  return last;
}

bool GraphBranches::begin(Accesses accesses, Branch branch) {
  const auto operation = static_cast<std::uint32_t>(operations_.size());
  const auto own = static_cast<std::size_t>(branch);
  dependences_.add({accesses.begin(), accesses.size()});
  std::array<std::int64_t, branch_count> wanted = last_of_branches(operation);
  wanted[own] = last_[own];
  std::vector<cudaGraphNode_t> nodes;
  bool others = false;
  for (std::size_t other = 0; other < wanted.size(); ++other) {
    if (wanted[other] == none || (other != own && wanted[other] <= met_[own][other])) continue;
    const std::vector<cudaGraphNode_t>& ends = operations_[static_cast<std::size_t>(wanted[other])].ends;
    nodes.insert(nodes.end(), ends.begin(), ends.end());
    if (other == own) continue;
    others = true;
    // What the other branch had met by then need not be met again; that it met more since is not counted.
    met_[own][other] = wanted[other];
  }
  if (others || branch != current_) check(set_capture_dependencies(stream_, nodes), graph_);
  current_ = branch;
  operations_.push_back({branch, {}});
  last_[own] = operation;
  return nodes.size() == 1 && is_kernel(nodes.front()) && is_short(accesses);
}

void GraphBranches::end() noexcept {
  cudaStreamCaptureStatus status{};
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  const cudaError_t answer = capture_info(stream_, &status, &nodes, &edges, &count);
  if (answer != cudaSuccess || status != cudaStreamCaptureStatusActive) {
    if (failure_ == cudaSuccess)
      failure_ = answer != cudaSuccess ? answer : cudaErrorStreamCaptureInvalidated;
    return;
  }
  operations_.back().ends.assign(nodes, nodes + count);
}

void GraphBranches::finish() {
  check(failure_, graph_);
  std::vector<cudaGraphNode_t> nodes;
  for (const std::int64_t last : last_)
    if (last != none) {
      const auto& ends = operations_[static_cast<std::size_t>(last)].ends;
      nodes.insert(nodes.end(), ends.begin(), ends.end());
    }
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  check(set_capture_dependencies(stream_, nodes), graph_);
}

void GraphBranches::set_priorities() const {
  if (last_[1] == none && last_[2] == none) return;
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), graph_);
  for (const Operation& operation : operations_)
    for (const cudaGraphNode_t node : operation.ends) {
      if (!is_kernel(node)) continue;
      cudaLaunchAttributeValue value{};
      value.priority = operation.branch == Branch::main     ? greatest
                       : operation.branch == Branch::update ? least
                                                            : std::min(least, greatest + 1);
      check(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributePriority, &value), graph_);
    }
}

}  // namespace encore::backend::impl
