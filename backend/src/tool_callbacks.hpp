// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>

namespace encore::backend::impl {

using ToolCallbacks = Kokkos::Tools::Experimental::EventSet;

// Kokkos has one set of callbacks for the process, which recordings change for a while: several at once, on several
// threads. So who changes it is counted for the process, and what was found there first is put back by the last one.

/// What a loaded tool, or the program, had set before the recordings under way: for calling it without Kokkos' fences.
const ToolCallbacks& loaded_callbacks();

/// From the first to the last of the pauses under way Kokkos calls nothing.
void pause_callbacks();
void resume_callbacks();

/// From the first to the last of the watches under way, and without a pause, Kokkos calls what `replace` puts into the
/// set; all watches give the same.
void watch_callbacks(void (*replace)(ToolCallbacks&));
void end_watching_callbacks();

}  // namespace encore::backend::impl
