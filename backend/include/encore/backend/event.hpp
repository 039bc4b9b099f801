// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/stream.hpp>

#include <memory>

namespace encore::backend {

/// A point in a stream's order that the host can wait for, and measure time between.
template <class Space>
class Event {
 public:
  Event();
  ~Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;

  /// Marks everything queued so far. Not while recording (throws CaptureError).
  void record(Stream<Space>& stream);
  /// Blocks until the mark is reached; at once if nothing was marked. Throws DeviceError when a kernel failed.
  void wait() const;
  /// Device time between two marks that have been reached.
  static double milliseconds(const Event& begin, const Event& end);

 private:
  struct Native;
  std::unique_ptr<Native> native_;
};

}  // namespace encore::backend
