// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/branch_recorder.hpp>
#include <encore/backend/dependences.hpp>

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace encore::backend::impl {

/// Moves a stream's capture between the branches of one graph: before each launch the nodes that the capture would
/// have the next node wait for are replaced by those that it must wait for.
class GraphBranches final : public BranchRecorder {
 public:
  /// The stream must be captured as long as this is used.
  GraphBranches(cudaStream_t stream, std::string graph) : stream_(stream), graph_(std::move(graph)) {}

  bool begin(Accesses accesses, Branch branch) override;
  void end() noexcept override;

  /// Joins the branches. Throws DeviceError where the driver did not tell a node, as after a call that ended the
  /// capture.
  void finish();
  /// Has kernels of the main branch go first where there is too little of the device for all. After the capture.
  void set_priorities() const;

 private:
  static constexpr std::int64_t none = -1;

  struct Operation {
    Branch branch;
    std::vector<cudaGraphNode_t> ends;  ///< nodes after which it is over
  };

  std::array<std::int64_t, branch_count> last_of_branches(std::uint32_t operation) const;

  cudaStream_t stream_;
  std::string graph_;
  Dependences dependences_;
  std::vector<Operation> operations_;
  std::array<std::int64_t, branch_count> last_{none, none, none};
  /// met_[b][c]: the last operation of branch c that branch b has waited for.
  std::array<std::array<std::int64_t, branch_count>, branch_count> met_{
      {{none, none, none}, {none, none, none}, {none, none, none}}};
  Branch current_ = Branch::main;
  cudaError_t failure_ = cudaSuccess;
};

}  // namespace encore::backend::impl
