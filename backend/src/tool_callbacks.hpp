// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>

namespace encore::backend::impl {

using ToolCallbacks = Kokkos::Tools::Experimental::EventSet;

// Kokkos has one set of callbacks for the process, which recordings change for a while, and reads it without a lock: a
// kernel that another thread starts through Kokkos just then could call a null pointer. So the set is left alone while
// streams of several threads are alive, and a thread's first stream waits for a watch of another one to end. (A tool that
// is loaded is kept from a capture of CUDA in any case; there, kernels of other threads would end the capture.)

/// What a loaded tool, or the program, had set before the recordings under way: for calling it without Kokkos' fences.
const ToolCallbacks& loaded_callbacks();
/// Looks again what is set, unless a recording under way has changed it.
void look_at_callbacks();

/// From the first to the last of the pauses under way Kokkos calls nothing.
void pause_callbacks();
void resume_callbacks();

/// From the first to the last of the watches under way, and without a pause, Kokkos calls what `replace` puts into the
/// set; all watches give the same. False, without a watch: streams of several threads are alive.
bool watch_callbacks(void (*replace)(ToolCallbacks&));
void end_watching_callbacks();

/// Every stream tells when it begins and ends.
void note_stream(const void* stream);
void forget_stream(const void* stream);

}  // namespace encore::backend::impl
