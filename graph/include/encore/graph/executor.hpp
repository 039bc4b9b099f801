// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/recorded_graph.hpp>
#include <encore/graph/policy.hpp>
#include <encore/graph/program.hpp>
#include <encore/graph/step_report.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace encore::graph {

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
