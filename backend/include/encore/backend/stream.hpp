// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/access.hpp>
#include <encore/backend/space.hpp>
#include <encore/backend/tape.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace encore::backend {

class ResourceUses;
class BranchRecorder;

/// execute: kernels run. prime: nothing runs, but kernels are loaded and vendor algorithms chosen, so that a
/// recording is never a process' first use of them. record: kernels are stored for replay and do not run. list:
/// nothing runs or is loaded and no memory is touched, so that buffers need none; for collecting labels.
enum class StreamMode { execute, prime, record, list };

/// Where in a recorded graph a kernel goes. Each branch is a chain; a kernel also waits for those kernels of the other
/// branches whose accesses conflict with its own. Replays of a branch may overlap, so the main branch, which is
/// preferred where there is too little of the device for all, should hold what the rest of the step waits for.
/// beside: what no later kernel of the pass needs, such as weight gradients. update: what only the next step needs.
/// Hosts find the order of replay from the accesses alone, and eager launches are in one order everywhere.
enum class Branch : std::uint8_t { main, beside, update };
inline constexpr int branch_count = 3;

/// What a launch does, as far as it is declared.
struct LaunchRecord {
  const char* label;
  double flops;  ///< of matrix products and attention
  double bytes;  ///< read and written
};

/// Running totals of a stream. A replayed step must leave the last three unchanged.
struct StreamCounters {
  std::uint64_t launches = 0;
  std::uint64_t replays = 0;
  std::uint64_t synchronizations = 0;
  std::uint64_t host_copies = 0;
};

/// An ordered queue of kernels on one execution space instance. Not copyable; used by one thread at a time.
template <class Space>
class Stream {
 public:
  /// Makes its own instance (CUDA: on a new non-blocking stream). Throws DeviceError.
  Stream();
  /// Works on the caller's instance, which must outlive the stream; on CUDA it must not be the legacy stream.
  explicit Stream(const Space& instance);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const Space& execution_space() const { return space_; }
  /// Host threads that run a kernel; 1 on Serial and CUDA.
  int threads() const;
  StreamMode mode() const { return mode_; }
  /// Whether kernels are neither run nor stored.
  bool runs_nothing() const { return mode_ == StreamMode::prime || mode_ == StreamMode::list; }
  const StreamCounters& counters() const { return counters_; }

  /// Waits until everything queued has run. Counted. Throws CaptureError while recording, and DeviceError
  /// when a kernel failed.
  void synchronize(const char* reason);

  /// Queues a copy inside the space. May be recorded.
  void copy(void* destination, const void* source, std::size_t bytes, const char* label);
  /// Queues a copy between host and device memory. Counted. Throws CaptureError while recording: a replay
  /// would read or write a host address that may be gone. Unless the host side is a StagingAllocation the
  /// call may block.
  void copy_to_host(void* host, const void* device, std::size_t bytes, const char* label);
  void copy_to_device(void* device, const void* host, std::size_t bytes, const char* label);
  /// Sets bytes to zero. May be recorded.
  void clear(void* destination, std::size_t bytes, const char* label);

  /// Until it is called with nullptr, the label of each launch is added to `labels`, in every mode. With list
  /// mode this tells which kernels a segment has without running one.
  void collect_labels(std::vector<std::string>* labels) { labels_ = labels; }
  /// Until it is called with nullptr, what each launch does is added to `records`, in every mode.
  void collect_launches(std::vector<LaunchRecord>* records) { records_ = records; }
  std::vector<std::string>* label_collector() const { return labels_; }

  // For the launch gateway, RecordedGraph and RecordedResource.
  void note_launch(const char* label, Accesses accesses = {}) {
    ++counters_.launches;
    if (labels_ != nullptr) labels_->push_back(label);
    if (records_ == nullptr) return;
    records_->push_back({label, 0, 0});
    for (const Access& access : accesses)
      records_->back().bytes += static_cast<double>(access.end - access.begin);
  }
  /// Adds to what the last launch is said to compute.
  void note_flops(double flops) {
    if (records_ != nullptr && !records_->empty()) records_->back().flops += flops;
  }
  Branch branch() const { return branch_; }
  void set_branch(Branch branch) { branch_ = branch; }
  /// What orders the nodes of the graph that is being recorded; nullptr elsewhere.
  BranchRecorder* branch_recorder() const { return branch_recorder_; }
  void set_branch_recorder(BranchRecorder* recorder) { branch_recorder_ = recorder; }
  void count_replay() { ++counters_.replays; }
  Tape* tape() const { return tape_; }
  /// Where a recording notes the resources that its kernels refer to; nullptr outside one.
  ResourceUses* resource_uses() const { return resource_uses_; }
  void set_resource_uses(ResourceUses* uses) { resource_uses_ = uses; }
  void set_mode(StreamMode mode, Tape* tape = nullptr) {
    mode_ = mode;
    tape_ = tape;
  }

 private:
  void refuse_while_recording(const char* what, const char* label) const;

  std::shared_ptr<void> owned_native_stream_;
  Space space_;
  StreamMode mode_ = StreamMode::execute;
  Tape* tape_ = nullptr;
  StreamCounters counters_;
  std::vector<std::string>* labels_ = nullptr;
  std::vector<LaunchRecord>* records_ = nullptr;
  Branch branch_ = Branch::main;
  BranchRecorder* branch_recorder_ = nullptr;
  ResourceUses* resource_uses_ = nullptr;
};

/// Restores the mode when a recording is left, also by an exception.
template <class Space>
class ModeScope {
 public:
  ModeScope(Stream<Space>& stream, StreamMode mode, Tape* tape = nullptr)
      : stream_(stream), mode_(stream.mode()), tape_(stream.tape()) {
    stream.set_mode(mode, tape);
  }
  ~ModeScope() { stream_.set_mode(mode_, tape_); }
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  Stream<Space>& stream_;
  StreamMode mode_;
  Tape* tape_;
};

/// While it lives, what is recorded goes to another branch of the graph.
template <class Space>
class BranchScope {
 public:
  BranchScope(Stream<Space>& stream, Branch branch) : stream_(stream), before_(stream.branch()) {
    stream.set_branch(branch);
  }
  ~BranchScope() { stream_.set_branch(before_); }
  BranchScope(const BranchScope&) = delete;
  BranchScope& operator=(const BranchScope&) = delete;

 private:
  Stream<Space>& stream_;
  Branch before_;
};

/// For weight gradients, statistics and the like. What is in it already goes on in its own branch.
template <class Space>
class BesideScope : public BranchScope<Space> {
 public:
  explicit BesideScope(Stream<Space>& stream)
      : BranchScope<Space>(stream, stream.branch() == Branch::main ? Branch::beside : stream.branch()) {}
};

}  // namespace encore::backend
