// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/access.hpp>
#include <encore/backend/branch_recorder.hpp>
#include <encore/backend/stream.hpp>
#include <encore/backend/team.hpp>

#if defined(KOKKOS_ENABLE_CUDA)
#include <encore/backend/launch_cuda.hpp>
#endif

#include <alloca.h>

namespace encore::backend {

namespace impl {

template <class Functor>
void run_range_share(const void* functor, std::int64_t begin, std::int64_t end, std::size_t) {
  const Functor& call = *static_cast<const Functor*>(functor);
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) call(i);
}

template <class Functor>
void run_teams_share(const void* functor, std::int64_t begin, std::int64_t end, std::size_t scratch_bytes) {
  constexpr std::uintptr_t alignment = 64;
  const Functor& call = *static_cast<const Functor*>(functor);
  const auto memory = reinterpret_cast<std::uintptr_t>(alloca(scratch_bytes + alignment));
  auto* scratch = reinterpret_cast<std::byte*>((memory + alignment - 1) / alignment * alignment);
  for (std::int64_t i = begin; i < end; ++i) call(HostTeam(i, scratch));
}

/// Runs the shares of a host kernel through Kokkos, one per thread; the partition is that of Tape::replay.
template <class Space>
void run_shares(const Stream<Space>& stream, const char* label, std::int64_t size, std::size_t scratch_bytes,
                Tape::Chunk chunk, const void* functor);

template <class Space, class Functor>
void run_or_record(Stream<Space>& stream, const char* label, Accesses accesses, std::int64_t size,
                   std::size_t scratch_bytes, Tape::Chunk chunk, const Functor& functor) {
  if (stream.runs_nothing()) return;
  if (stream.mode() == StreamMode::record) {
    const LaunchEvent event(stream, label);
    stream.tape()->append(label, accesses, size, scratch_bytes, chunk, functor);
  } else {
    run_shares(stream, label, size, scratch_bytes, chunk, &functor);
  }
}

}  // namespace impl

/// Largest functor a kernel may have: it travels as a kernel argument, by value, into a CUDA graph node.
inline constexpr std::size_t largest_functor = 3840;

/// The gateway that every kernel goes through. Runs `functor(i)` for each index of `range`, or records it.
/// `label` must be a literal. `accesses` name all memory the kernel touches; an empty list means "anything".
/// Neither allocates nor synchronises. Throws DeviceError if the launch is refused.
template <class Space, class Functor>
void launch(Stream<Space>& stream, const char* label, Accesses accesses, Range range,
            const Functor& functor) {
  static_assert(sizeof(Functor) <= largest_functor, "put large kernel state in a view");
  if (range.size <= 0) return;
  stream.note_launch(label, accesses);
  if constexpr (is_host_space<Space>) {
    impl::run_or_record(stream, label, accesses, range.size, 0, &impl::run_range_share<Functor>, functor);
  } else {
    launch_on_cuda(stream, label, accesses, range, functor);
  }
}

/// As above with one team per league index: `functor(team)`.
template <class Space, int Threads, class Functor>
void launch(Stream<Space>& stream, const char* label, Accesses accesses, Teams<Threads> teams,
            const Functor& functor) {
  static_assert(sizeof(Functor) <= largest_functor, "put large kernel state in a view");
  if (teams.league <= 0) return;
  stream.note_launch(label, accesses);
  if constexpr (is_host_space<Space>) {
    impl::run_or_record(stream, label, accesses, teams.league, teams.scratch_bytes,
                        &impl::run_teams_share<Functor>, functor);
  } else {
    launch_on_cuda(stream, label, accesses, teams, functor);
  }
}

/// A vendor library's call: `call()` queues work on the stream's native queue (CUDA), or computes (hosts,
/// where it must be copyable, and is stored while recording). Not called in prime mode.
template <class Space, class Call>
void launch_native(Stream<Space>& stream, const char* label, Accesses accesses, const Call& call) {
  stream.note_launch(label, accesses);
  if constexpr (is_host_space<Space>) {
    const auto functor = [call](std::int64_t) { call(); };
    impl::run_or_record(stream, label, accesses, 1, 0, &impl::run_range_share<decltype(functor)>, functor);
  } else {
    if (stream.runs_nothing()) return;
    const impl::NodeScope node(stream, label, accesses);
    call();
  }
}

}  // namespace encore::backend
