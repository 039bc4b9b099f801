// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/stream.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace encore::backend {

/// Owns something with a native handle that recorded kernels refer to, such as a communicator: ending it while
/// graphs still refer to it is what makes a job hang in its teardown. Code that uses the handle calls use() first.
/// A graph recorded meanwhile keeps the handle alive, and its name is known here until it dies. Move-only; use(),
/// graphs() and close() may be called by several threads.
class RecordedResource {
 public:
  /// `release` ends the native handle. It is called once, after the last graph that refers to it has died; it has
  /// to wait for work under way by itself. What it throws is passed on by close() alone.
  RecordedResource(std::string name, std::function<void()> release);
  /// Without close() the handle lives until the last graph dies; replays of those graphs throw CaptureError.
  ~RecordedResource();
  RecordedResource(RecordedResource&&) noexcept = default;
  RecordedResource& operator=(RecordedResource&&) = delete;

  const std::string& name() const;

  /// To be called before each use of the native handle on the stream. Throws CaptureError after close().
  template <class Space>
  void use(const Stream<Space>& stream) const {
    use_in(stream.resource_uses());
  }

  /// Names of the graphs alive that refer to it, in the order in which they were recorded.
  std::vector<std::string> graphs() const;

  /// Ends the native handle. Throws CaptureError at once, naming the resource and the graphs, while there are
  /// graphs that refer to it. Does nothing the second time.
  void close();

 private:
  friend class ResourceUses;
  struct State;
  void use_in(ResourceUses* recording) const;

  std::shared_ptr<State> state_;
};

/// What one recorded graph refers to and shares the ownership of.
class ResourceUses {
 public:
  explicit ResourceUses(std::string graph);
  ~ResourceUses();
  ResourceUses(const ResourceUses&) = delete;
  ResourceUses& operator=(const ResourceUses&) = delete;

  /// Keeps what needs no ordered end, such as a vendor library's workspace, until the graph has died.
  void keep(std::shared_ptr<const void> owned);
  /// Throws CaptureError, naming both, when the owner of one of them is gone.
  void check() const;

 private:
  friend class RecordedResource;
  using State = RecordedResource::State;

  std::string graph_;
  std::vector<std::shared_ptr<State>> states_;
  std::vector<std::shared_ptr<const void>> kept_;
};

/// To be called where something is used whose memory or code a recorded kernel needs: a graph that is being
/// recorded shares its ownership.
template <class Space>
void keep_for_recording(Stream<Space>& stream, const std::shared_ptr<const void>& owned) {
  if (stream.resource_uses() != nullptr) stream.resource_uses()->keep(owned);
}

}  // namespace encore::backend
