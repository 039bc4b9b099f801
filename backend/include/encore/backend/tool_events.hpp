// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/stream.hpp>

#include <cstdint>

namespace encore::backend::impl {

/// Tells a loaded Kokkos tool of a launch that does not go through Kokkos, as of a parallel_for. While a recording is
/// made there are no fences before the callbacks. Without a tool it costs a load.
class LaunchEvent {
 public:
  template <class Space>
  LaunchEvent(const Stream<Space>& stream, const char* label) {
    const bool recording = stream.mode() == StreamMode::record;
    if (recording || Kokkos::Tools::profileLibraryLoaded())
      begin(label, Kokkos::Tools::Experimental::device_id(stream.execution_space()), recording);
  }
  ~LaunchEvent() {
    if (begun_) end();
  }
  LaunchEvent(const LaunchEvent&) = delete;
  LaunchEvent& operator=(const LaunchEvent&) = delete;

 private:
  void begin(const char* label, std::uint32_t device, bool recording) noexcept;
  void end() noexcept;

  std::uint64_t number_ = 0;  ///< that the tool gave
  bool begun_ = false;
  bool recording_ = false;
};

/// While one lives, Kokkos itself calls no tool, on any thread: before each callback it would fence the device, which
/// ends a capture, also for kernels that a body launches through Kokkos. LaunchEvent and Region go on: in the record
/// mode they need one.
class CaptureWithTools {
 public:
  CaptureWithTools();
  ~CaptureWithTools();
  CaptureWithTools(const CaptureWithTools&) = delete;
  CaptureWithTools& operator=(const CaptureWithTools&) = delete;
};

}  // namespace encore::backend::impl
