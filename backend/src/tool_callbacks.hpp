// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>

namespace encore::backend::impl {

/// In a recording: the callbacks of the tool that CaptureWithTools keeps from Kokkos, for calling them without a fence.
const Kokkos::Tools::Experimental::EventSet& recording_callbacks();

}  // namespace encore::backend::impl
