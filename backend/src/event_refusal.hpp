// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/error.hpp>
#include <encore/backend/event.hpp>

namespace encore::backend::impl {

template <class Space>
void refuse_in_recording(const Stream<Space>& stream, const Event<Space>& event, const char* operation) {
  if (stream.mode() != StreamMode::record) return;
  throw CaptureError(std::string(operation) + " '" + event.name() +
                     "' inside a recorded run: move it before or after the run, or leave the run eager");
}

}  // namespace encore::backend::impl
