// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/stream.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace encore::backend {

/// Kernels recorded once from a stream and replayed on it: a CUDA graph, or on a host a Tape that runs in one
/// parallel region. Owns neither the buffers nor the stream, both of which must outlive it, but keeps
/// alive what vendor libraries need for its kernels. Move-only.
template <class Space>
class RecordedGraph {
 public:
  /// Calls `body` twice on this thread: once to prime, once to record. No kernel runs, so no buffer changes.
  /// When `body` throws or the driver refuses, the stream is left as it was and the exception is passed on
  /// (CaptureError for the driver's refusals). Resources that the body uses: see RecordedResource.
  RecordedGraph(Stream<Space>& stream, std::string name, const std::function<void()>& body);
  ~RecordedGraph();
  RecordedGraph(RecordedGraph&&) noexcept;
  RecordedGraph& operator=(RecordedGraph&&) noexcept;

  /// Queues all recorded kernels once. Does not synchronise, and allocates in the first few replays on hosts only.
  /// Throws DeviceError, and CaptureError when the owner of a resource that it uses is gone.
  void replay();

  const std::string& name() const { return name_; }
  /// Graph nodes (CUDA) or recorded kernels (hosts).
  std::size_t nodes() const;
  /// Nodes on the longest chain of which each waits for the one before (CUDA), or of kernels whose accesses conflict.
  std::size_t longest_chain() const;
  /// Nodes that clear or copy memory and no kernel could stand in for; 0 on hosts.
  std::size_t memory_nodes() const;
  /// The kernels' labels in the order of recording.
  const std::vector<std::string>& labels() const { return labels_; }
  /// Memory of the space that the graph itself takes: what the driver had less of after making it (CUDA, which
  /// hands it out in large blocks: often 0), or the tape's bytes (hosts).
  std::size_t device_bytes() const;
  /// Seconds spent recording, and turning the recording into something that can be replayed.
  double record_seconds() const { return record_seconds_; }
  double instantiate_seconds() const { return instantiate_seconds_; }

 private:
  struct Recording;
  Stream<Space>* stream_;
  std::string name_;
  std::vector<std::string> labels_;
  std::unique_ptr<ResourceUses> resources_;  ///< outlives the recording, which refers to the native handles
  std::unique_ptr<Recording> recording_;
  double record_seconds_ = 0;
  double instantiate_seconds_ = 0;
};

}  // namespace encore::backend
