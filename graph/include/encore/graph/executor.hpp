// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/recorded_graph.hpp>
#include <encore/graph/policy.hpp>
#include <encore/graph/program.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace encore::graph {

enum class StepMode { eager, capture, replay };
std::string_view name_of(StepMode mode);

/// What one step did on the device, apart from its numbers.
struct StepReport {
  StepMode mode = StepMode::eager;
  std::size_t graph_nodes = 0;      ///< nodes replayed
  std::size_t eager_launches = 0;   ///< kernels launched one by one
  std::size_t host_syncs = 0;       ///< waits for the device inside the step
  std::size_t host_copies = 0;      ///< copies from or to the host inside the step
  std::size_t fallbacks = 0;        ///< runs that the policy captures but that ran eagerly, after warm-up
  double capture_seconds = 0;       ///< recording and instantiating, in the step that captured
};

/// Runs a program step by step under a capture policy: eagerly for the warm-up steps, then recording each
/// captured run once, then replaying. Recording executes nothing, so a refused capture changes no buffer: the
/// step and all later ones run eagerly and `refusal()` says why.
/// The device, the program and the bound memory must outlive the executor.
template <class Space>
class Executor {
 public:
  Executor(backend::Device<Space>& device, const Program<Space>& program, Bindings bindings,
           CapturePolicy policy);

  /// Queues one step. Returns before the device is done.
  StepReport step();
  /// Queues one step without graphs, whatever the policy.
  StepReport step_eagerly();
  /// Drops all graphs; they are recorded anew by the next step past warm-up.
  void reset();

  const std::vector<Run>& runs() const { return runs_; }
  const CapturePolicy& policy() const { return policy_; }
  /// Empty, or why capturing was given up, naming run and segment.
  const std::string& refusal() const { return refusal_; }
  /// Graphs that exist now.
  std::size_t graphs() const { return graphs_.size(); }

 private:
  void run_segments(const Run& run) const;
  void capture();
  bool captures() const;

  backend::Device<Space>* device_;
  const Program<Space>* program_;
  Bindings bindings_;
  CapturePolicy policy_;
  std::vector<Run> runs_;
  std::vector<backend::RecordedGraph<Space>> graphs_;  ///< of the captured runs, in order
  std::int64_t steps_ = 0;
  std::string refusal_;
};

}  // namespace encore::graph
