// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/event.hpp>

#include <chrono>

namespace encore::backend {

template <class Space>
struct Event<Space>::Native {
  std::chrono::steady_clock::time_point time;
};

template <class Space>
Event<Space>::Event() : native_(std::make_unique<Native>()) {}
template <class Space>
Event<Space>::~Event() = default;
template <class Space>
Event<Space>::Event(Event&&) noexcept = default;
template <class Space>
Event<Space>& Event<Space>::operator=(Event&&) noexcept = default;

template <class Space>
void Event<Space>::record(Stream<Space>& stream) {
  if (stream.mode() == StreamMode::record)
    throw CaptureError("an event cannot be marked inside a recorded run");
  native_->time = std::chrono::steady_clock::now();
}

template <class Space>
void Event<Space>::wait() const {}  // Host kernels have run when their launch returns.

template <class Space>
double Event<Space>::milliseconds(const Event& begin, const Event& end) {
  return std::chrono::duration<double, std::milli>(end.native_->time - begin.native_->time).count();
}

ENCORE_IF_SERIAL(template class Event<Kokkos::Serial>;)
ENCORE_IF_OPENMP(template class Event<Kokkos::OpenMP>;)

}  // namespace encore::backend
