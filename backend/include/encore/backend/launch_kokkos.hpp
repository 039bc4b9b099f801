// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/launch.hpp>

namespace encore::backend {

/// For Kokkos kernels that cannot go through launch(), such as those of a library: `call()` starts them on
/// stream.execution_space(), and nothing else. It is copied, and on hosts called in each replay, so that it holds Views
/// by value. In a recording:
/// - CUDA captures what it starts. The call must have been made once before, as Kokkos prepares a kernel where it is
///   first used; functor and policy must stay below 512 bytes, or below 4096 with HintLightWeight; it may neither
///   allocate nor wait (reductions go to Views). What the driver refuses throws CaptureError.
/// - Serial calls it in each replay. OpenMP does so on one thread of the replay's parallel region, where Kokkos 4 runs a
///   kernel serially; Kokkos 5 ends the program there.
/// Not called in prime mode.
template <class Space, class Call>
void launch_kokkos(Stream<Space>& stream, const char* label, Accesses accesses, const Call& call) {
  if constexpr (is_host_space<Space>) {
    // Not through launch_native, which computes inside a kernel of Kokkos: one inside another on an instance never ends.
    stream.note_launch(label, accesses);
    if (stream.runs_nothing()) return;
    if (stream.mode() != StreamMode::record) return call();
    const auto functor = [call](std::int64_t) { call(); };
    stream.tape()->append(label, accesses, 1, 0, &impl::run_range_share<decltype(functor)>, functor);
  } else {
    launch_native(stream, label, accesses, call);
  }
}

}  // namespace encore::backend
