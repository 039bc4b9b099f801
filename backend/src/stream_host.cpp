// SPDX-License-Identifier: Apache-2.0
#include "copy_event.hpp"
#include "tool_callbacks.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>

#include <cstring>
#include <type_traits>

namespace encore::backend {

namespace {

/// Each stream of Serial gets an instance of its own, since a kernel locks its instance and streams of several threads
/// must not wait for each other. An instance of OpenMP would be a pool of threads of its own.
template <class Space>
Space own_instance() {
#if defined(KOKKOS_ENABLE_SERIAL)
  if constexpr (std::is_same_v<Space, Kokkos::Serial>) return Kokkos::Serial(Kokkos::NewInstance{});
#endif
  return Space();
}

}  // namespace

template <class Space>
Stream<Space>::Stream() : space_(own_instance<Space>()) {
  impl::note_stream(this);
}

template <class Space>
Stream<Space>::Stream(const Space& instance) : space_(instance) {
  impl::note_stream(this);
}

template <class Space>
Stream<Space>::~Stream() {
  impl::forget_stream(this);
}

template <class Space>
int Stream<Space>::threads() const {
  return static_cast<int>(space_.concurrency());
}

template <class Space>
void Stream<Space>::refuse_while_recording(const char* what, const char* label) const {
  if (mode_ != StreamMode::record) return;
  throw CaptureError(std::string(what) + " '" + label +
                     "' inside a recorded run: move it before or after the run, or leave the run eager");
}

template <class Space>
void Stream<Space>::synchronize(const char* reason) {
  refuse_while_recording("synchronization", reason);
  if (runs_nothing()) return;
  ++counters_.synchronizations;
  space_.fence(reason);
}

template <class Space>
void Stream<Space>::copy(void* destination, const void* source, std::size_t bytes, const char* label) {
  launch_native(*this, label,
                {write(static_cast<std::byte*>(destination), bytes),
                 read(static_cast<const std::byte*>(source), bytes)},
                [=] { std::memcpy(destination, source, bytes); });
}

template <class Space>
void Stream<Space>::copy_to_host(void* host, const void* device, std::size_t bytes, const char* label) {
  refuse_while_recording("host copy", label);
  if (runs_nothing()) return;
  ++counters_.host_copies;
  const impl::CopyEvent event(label, Kokkos::HostSpace::name(), host, Kokkos::HostSpace::name(), device,
                              bytes);
  if (bytes > 0) std::memcpy(host, device, bytes);  // An empty array may have a null address.
}

template <class Space>
void Stream<Space>::copy_to_device(void* device, const void* host, std::size_t bytes, const char* label) {
  copy_to_host(device, host, bytes, label);
}

template <class Space>
void Stream<Space>::clear(void* destination, std::size_t bytes, const char* label) {
  launch_native(*this, label, {write(static_cast<std::byte*>(destination), bytes)},
                [=] { std::memset(destination, 0, bytes); });
}

namespace impl {

namespace {

struct Share {
  Tape::Chunk chunk;
  const void* functor;
  std::int64_t size;
  std::size_t scratch_bytes;
  std::int64_t shares;

  KOKKOS_FUNCTION void operator()(std::int64_t share) const {
    KOKKOS_IF_ON_HOST((const std::int64_t begin = size * share / shares;
                       const std::int64_t end = size * (share + 1) / shares;
                       if (begin < end) chunk(functor, begin, end, scratch_bytes);))
  }
};

}  // namespace

template <class Space>
void run_shares(const Stream<Space>& stream, const char* label, std::int64_t size, std::size_t scratch_bytes,
                Tape::Chunk chunk, const void* functor) {
  const std::int64_t shares = std::min<std::int64_t>(stream.threads(), size);
  using Policy =
      Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>, Kokkos::Schedule<Kokkos::Static>>;
  Kokkos::parallel_for(label, Policy(stream.execution_space(), 0, shares),
                       Share{chunk, functor, size, scratch_bytes, shares});
}

#define ENCORE_INSTANTIATE(SPACE)                                                                     \
  template void run_shares(const Stream<SPACE>&, const char*, std::int64_t, std::size_t, Tape::Chunk, \
                           const void*);
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE(Kokkos::Serial))
ENCORE_IF_OPENMP(ENCORE_INSTANTIATE(Kokkos::OpenMP))
#undef ENCORE_INSTANTIATE

}  // namespace impl

ENCORE_IF_SERIAL(template class Stream<Kokkos::Serial>;)
ENCORE_IF_OPENMP(template class Stream<Kokkos::OpenMP>;)

}  // namespace encore::backend
