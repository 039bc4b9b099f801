// SPDX-License-Identifier: Apache-2.0
#include "tool_callbacks.hpp"

#include <encore/backend/tool_events.hpp>

#include <mutex>

namespace encore::backend::impl {

namespace {

namespace Tools = Kokkos::Tools;

/// Kokkos has one set of callbacks for the process, so who takes them away has to be counted for the process, too.
struct Pauses {
  std::mutex mutex;
  int count = 0;
  Tools::Experimental::EventSet callbacks{};
};

Pauses& pauses() {
  static Pauses of_the_process;
  return of_the_process;
}

}  // namespace

// No lock: they change only between recordings.
const Tools::Experimental::EventSet& recording_callbacks() { return pauses().callbacks; }

CaptureWithTools::CaptureWithTools() {
  Pauses& paused = pauses();
  const std::lock_guard lock(paused.mutex);
  if (paused.count++ > 0) return;
  paused.callbacks = Tools::Experimental::get_callbacks();
  Tools::Experimental::set_callbacks({});
}

CaptureWithTools::~CaptureWithTools() {
  Pauses& paused = pauses();
  const std::lock_guard lock(paused.mutex);
  if (--paused.count == 0) Tools::Experimental::set_callbacks(paused.callbacks);
}

void LaunchEvent::begin(const char* label, std::uint32_t device, bool recording) noexcept {
  recording_ = recording;
  begun_ = !recording || recording_callbacks().begin_parallel_for != nullptr;
  if (!recording) return Tools::beginParallelFor(label, device, &number_);
  if (begun_) recording_callbacks().begin_parallel_for(label, device, &number_);
}

void LaunchEvent::end() noexcept {
  if (!recording_) return Tools::endParallelFor(number_);
  if (recording_callbacks().end_parallel_for != nullptr) recording_callbacks().end_parallel_for(number_);
}

}  // namespace encore::backend::impl
