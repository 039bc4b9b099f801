// SPDX-License-Identifier: Apache-2.0
#include "foreign_kernels.hpp"
#include "graph_branches_cuda.hpp"
#include "graph_kernels_cuda.hpp"
#include "recording_scope.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/memory.hpp>
#include <encore/backend/recorded_graph.hpp>
#include <encore/backend/region.hpp>
#include <encore/backend/tool_events.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace encore::backend {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check_capture(cudaError_t status, const std::string& name) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  throw CaptureError("recording '" + name + "': CUDA says " + cudaGetErrorName(status) + ", " +
                     cudaGetErrorString(status));
}

/// Ends a capture that an exception left open and throws its graph away.
class CaptureScope {
 public:
  CaptureScope(cudaStream_t stream, const std::string& name) : stream_(stream) {
    // Thread-local: other threads may go on using the device; anything unsafe on this thread is refused.
    check_capture(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), name);
  }
  ~CaptureScope() {
    if (ended_) return;
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(stream_, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
  }
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;

  /// Whether a call that a capture forbids has ended it already.
  bool invalidated() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream_, &status) != cudaSuccess ||
           status == cudaStreamCaptureStatusInvalidated;
  }

  cudaGraph_t end(const std::string& name) {
    ended_ = true;
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(stream_, &graph);
    if (status != cudaSuccess && graph != nullptr) (void)cudaGraphDestroy(graph);
    check_capture(status, name);
    return graph;
  }

 private:
  cudaStream_t stream_;
  bool ended_ = false;
};

/// Has a stream's launches ordered by branches while it lives.
class BranchRecorderScope {
 public:
  BranchRecorderScope(Stream<Kokkos::Cuda>& stream, BranchRecorder& recorder) : stream_(stream) {
    stream.set_branch_recorder(&recorder);
  }
  ~BranchRecorderScope() { stream_.set_branch_recorder(nullptr); }
  BranchRecorderScope(const BranchRecorderScope&) = delete;
  BranchRecorderScope& operator=(const BranchRecorderScope&) = delete;

 private:
  Stream<Kokkos::Cuda>& stream_;
};

struct GraphDeleter {
  void operator()(cudaGraph_t graph) const { (void)cudaGraphDestroy(graph); }
};
struct GraphExecutableDeleter {
  void operator()(cudaGraphExec_t graph) const { (void)cudaGraphExecDestroy(graph); }
};

}  // namespace

template <>
struct RecordedGraph<Kokkos::Cuda>::Recording {
  std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, GraphDeleter> graph;
  std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, GraphExecutableDeleter> executable;
  std::size_t nodes = 0;
  std::size_t memory_nodes = 0;
  std::size_t device_bytes = 0;
};

template <>
RecordedGraph<Kokkos::Cuda>::RecordedGraph(Stream<Kokkos::Cuda>& stream, std::string name,
                                           const std::function<void()>& body)
    : stream_(&stream),
      name_(std::move(name)),
      resources_(std::make_unique<ResourceUses>(name_)),
      recording_(std::make_unique<Recording>()) {
  const cudaStream_t native = stream.execution_space().cuda_stream();
  const Region capture_region(stream, RegionKind::capture, name_);
  auto start = std::chrono::steady_clock::now();
  impl::RecordingScope<Kokkos::Cuda> scope(stream, labels_, *resources_);
  {
    const impl::ForeignKernelWatch watch(name_);
    const ModeScope<Kokkos::Cuda> prime(stream, StreamMode::prime);
    body();
  }
  scope.drop_labels();
  impl::GraphBranches order(native, name_);
  {
    const Region region(stream, RegionKind::record, name_);
    const impl::CaptureWithTools tools;
    const ModeScope<Kokkos::Cuda> record(stream, StreamMode::record);
    CaptureScope capture(native, name_);
    const BranchRecorderScope ordered(stream, order);
    try {
      body();
      order.finish();
    } catch (const CaptureError&) {
      throw;
    } catch (const std::exception& error) {
      if (!capture.invalidated()) throw;
      throw CaptureError("recording '" + name_ +
                         "': the driver ended it at a call that may not be recorded (" + error.what() +
                         "): move that before the run, or leave the run eager");
    }
    recording_->graph.reset(capture.end(name_));
  }
  order.set_priorities();
  recording_->memory_nodes = impl::replace_memory_nodes(recording_->graph.get(), name_);
  record_seconds_ = seconds_since(start);

  const Region region(stream, RegionKind::instantiate, name_);
  const std::size_t free_before = available_memory<Kokkos::Cuda>();
  start = std::chrono::steady_clock::now();
  check_capture(cudaGraphGetNodes(recording_->graph.get(), nullptr, &recording_->nodes), name_);
  cudaGraphExec_t executable = nullptr;
  check_capture(
      cudaGraphInstantiate(&executable, recording_->graph.get(), cudaGraphInstantiateFlagUseNodePriority),
      name_);
  recording_->executable.reset(executable);
  check_capture(cudaGraphUpload(executable, native), name_);
  instantiate_seconds_ = seconds_since(start);
  const std::size_t free_after = available_memory<Kokkos::Cuda>();
  recording_->device_bytes = free_before - std::min(free_before, free_after);
}

template <>
RecordedGraph<Kokkos::Cuda>::~RecordedGraph() = default;
template <>
RecordedGraph<Kokkos::Cuda>::RecordedGraph(RecordedGraph&&) noexcept = default;
template <>
RecordedGraph<Kokkos::Cuda>& RecordedGraph<Kokkos::Cuda>::operator=(RecordedGraph&& other) noexcept {
  recording_ = std::move(other.recording_);  // Before the resources that the old one refers to.
  resources_ = std::move(other.resources_);
  labels_ = std::move(other.labels_);
  name_ = std::move(other.name_);
  stream_ = other.stream_;
  record_seconds_ = other.record_seconds_;
  instantiate_seconds_ = other.instantiate_seconds_;
  return *this;
}

template <>
void RecordedGraph<Kokkos::Cuda>::replay() {
  resources_->check();
  stream_->count_replay();
  const Region region(*stream_, RegionKind::replay, name_);
  check_cuda(cudaGraphLaunch(recording_->executable.get(), stream_->execution_space().cuda_stream()),
             name_.c_str());
}

template <>
std::size_t RecordedGraph<Kokkos::Cuda>::nodes() const {
  return recording_->nodes;
}

template <>
std::size_t RecordedGraph<Kokkos::Cuda>::longest_chain() const {
  return impl::longest_chain(recording_->graph.get(), name_);
}

template <>
std::size_t RecordedGraph<Kokkos::Cuda>::memory_nodes() const {
  return recording_->memory_nodes;
}

template <>
std::size_t RecordedGraph<Kokkos::Cuda>::device_bytes() const {
  return recording_->device_bytes;
}

}  // namespace encore::backend
