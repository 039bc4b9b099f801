// SPDX-License-Identifier: Apache-2.0
#include "tool_callbacks.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/tool_events.hpp>

namespace encore::backend::impl {

namespace Tools = Kokkos::Tools;

CaptureWithTools::CaptureWithTools() { pause_callbacks(); }
CaptureWithTools::~CaptureWithTools() { resume_callbacks(); }

void LaunchEvent::begin(const char* label, std::uint32_t device, bool recording) noexcept {
  recording_ = recording;
  begun_ = !recording || loaded_callbacks().begin_parallel_for != nullptr;
  if (!recording) {
    try {
      return Tools::beginParallelFor(label, device, &number_);
    } catch (const CaptureError&) {
      // Another recording of this thread is being primed, and would refuse a kernel of Kokkos. This one is Encore's.
      begun_ = false;
      return;
    }
  }
  if (begun_) loaded_callbacks().begin_parallel_for(label, device, &number_);
}

void LaunchEvent::end() noexcept {
  if (!recording_) return Tools::endParallelFor(number_);
  if (loaded_callbacks().end_parallel_for != nullptr) loaded_callbacks().end_parallel_for(number_);
}

}  // namespace encore::backend::impl
