// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/stream.hpp>

#include <memory>
#include <string>

namespace encore::backend {

/// A point in a stream's order that the host or another stream can wait for, and measure time between.
template <class Space>
class Event {
 public:
  /// Errors call it by this name.
  explicit Event(std::string name = "event");
  ~Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;

  /// Marks everything queued so far. Not while recording (throws CaptureError).
  void record(Stream<Space>& stream);
  /// Blocks until the mark is reached; at once if nothing was marked. `stream` is the one that the calling thread
  /// works with: while that records, throws CaptureError, since a replay would not wait. Throws DeviceError when
  /// a kernel failed.
  void wait(const Stream<Space>& stream) const;
  /// What is queued on `stream` from now on waits for the mark, on whichever stream that was made. Throws
  /// CaptureError while recording: a graph would wait for that one mark only.
  void hold_back(Stream<Space>& stream) const;
  /// Device time between two marks that have been reached.
  static double milliseconds(const Event& begin, const Event& end);

  const std::string& name() const { return name_; }

 private:
  struct Native;
  std::string name_;
  std::unique_ptr<Native> native_;
};

}  // namespace encore::backend
