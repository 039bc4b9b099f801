// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/stream.hpp>
#include <encore/backend/tool_events.hpp>

namespace encore::backend {

/// Puts the nodes of a graph that is being recorded in order; see Branch. For the launch gateway.
class BranchRecorder {
 public:
  virtual ~BranchRecorder() = default;
  /// What is launched from now on waits for the last node of its branch and for those that its accesses conflict
  /// with; without accesses for all. Returns whether that is one kernel alone, so that the launch may begin before it
  /// is quite over (programmatic dependent launch).
  virtual bool begin(Accesses accesses, Branch branch) = 0;
  /// Ends what begin() began.
  virtual void end() noexcept = 0;
};

namespace impl {

/// One launch, for the graph that is being recorded and for a tool that watches.
class NodeScope {
 public:
  template <class Space>
  NodeScope(const Stream<Space>& stream, const char* label, Accesses accesses)
      : event_(stream, label), recorder_(stream.branch_recorder()) {
    if (recorder_ != nullptr) follows_kernel_ = recorder_->begin(accesses, stream.branch());
  }
  ~NodeScope() {
    if (recorder_ != nullptr) recorder_->end();
  }
  NodeScope(const NodeScope&) = delete;
  NodeScope& operator=(const NodeScope&) = delete;

  bool follows_kernel() const { return follows_kernel_; }

 private:
  LaunchEvent event_;
  BranchRecorder* recorder_;
  bool follows_kernel_ = false;
};

}  // namespace impl

}  // namespace encore::backend
