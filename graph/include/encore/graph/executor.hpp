// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/error.hpp>
#include <encore/backend/memory.hpp>
#include <encore/backend/recorded_graph.hpp>
#include <encore/graph/contract.hpp>
#include <encore/graph/policy.hpp>
#include <encore/graph/program.hpp>
#include <encore/graph/step_report.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace encore::graph {

/// Runs a program step by step under a capture policy: eagerly for the warm-up steps, then recording each
/// captured run once, then replaying. Recording executes nothing, so a refused capture changes no buffer: the
/// step and all later ones run eagerly and `refusal()` says why.
///
/// Before each replay the program and the address of each buffer are compared with what was captured. A difference
/// is a ReplayContractError that lists all of them, thrown before anything has run; or, if the policy asks for it,
/// the runs that it touches are recorded anew.
///
/// The device, the program and the bound memory must outlive the executor. Several executors may share a device and
/// memory: none frees what another's graphs use.
template <class Space>
class Executor {
 public:
  Executor(backend::Device<Space>& device, const Program<Space>& program, Bindings bindings,
           CapturePolicy policy);

  /// Queues one step. Returns before the device is done.
  StepReport step();
  /// Queues one step without graphs, whatever the policy.
  StepReport step_eagerly();
  /// Queues one step by replay alone. Throws ReplayContractError when the graphs do not exist (any more).
  StepReport replay();

  /// Records now what the next step would record, and runs nothing. Returns how many graphs were recorded; 0 also
  /// when the capture was refused.
  std::size_t prepare();

  /// Counts the warm-up as done.
  void end_warmup();

  /// Moves a buffer, and the parts of it, to another address; the next step finds the difference.
  void rebind(BufferId id, std::byte* address);
  const Bindings& bindings() const { return bindings_; }

  /// Lets the next step record the captured runs anew: all of them, or the one of that name. Throws
  /// ConfigurationError when there is none.
  void recapture();
  void recapture(std::string_view run);
  /// Waits for the device and drops all graphs, which gives back their memory. They are recorded anew by the next
  /// step past warm-up.
  void reset();

  /// A copy of what a buffer holds after the steps queued so far, which no later step changes. Queues the copy.
  backend::Allocation<Space> copy(BufferId id) const;
  /// The buffer's own memory, which the next step overwrites.
  std::byte* alias(BufferId id) const { return bindings_.address(id); }

  const std::vector<Run>& runs() const { return runs_; }
  const CapturePolicy& policy() const { return policy_; }
  /// Empty, or why capturing was given up, naming run and segment.
  const std::string& refusal() const { return refusal_; }
  /// Graphs that exist now.
  std::size_t graphs() const;

 private:
  using Graph = backend::RecordedGraph<Space>;

  void run_segments(const Run& run) const;
  void cut_program();
  void check_contract();
  void drop_runs_of_moved_buffers();
  void capture(StepReport& report);
  std::string refusal_of(const Error& error) const;
  void drop_graphs();
  bool captures() const;
  bool complete() const;
  StepReport run(bool replays, StepReport report);

  backend::Device<Space>* device_;
  const Program<Space>* program_;
  Bindings bindings_;
  CapturePolicy policy_;
  std::vector<Run> runs_;
  std::vector<std::unique_ptr<Graph>> graphs_;  ///< by run; null where there is none (yet)
  std::uint64_t cut_signature_ = 0;
  std::optional<Contract> captured_;
  std::int64_t steps_ = 0;
  mutable std::size_t running_ = 0;  ///< the segment that runs or is recorded, for errors
  bool was_reset_ = false;
  std::string refusal_;
};

}  // namespace encore::graph
