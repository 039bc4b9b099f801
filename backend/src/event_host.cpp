// SPDX-License-Identifier: Apache-2.0
#include "event_refusal.hpp"

#include <chrono>

namespace encore::backend {

template <class Space>
struct Event<Space>::Native {
  std::chrono::steady_clock::time_point time;
};

template <class Space>
Event<Space>::Event(std::string name) : name_(std::move(name)), native_(std::make_unique<Native>()) {}
template <class Space>
Event<Space>::~Event() = default;
template <class Space>
Event<Space>::Event(Event&&) noexcept = default;
template <class Space>
Event<Space>& Event<Space>::operator=(Event&&) noexcept = default;

template <class Space>
void Event<Space>::record(Stream<Space>& stream) {
  impl::refuse_in_recording(stream, *this, "marking event");
  native_->time = std::chrono::steady_clock::now();
}

template <class Space>
void Event<Space>::wait(const Stream<Space>& stream) const {
  impl::refuse_in_recording(stream, *this, "waiting for event");
  // Host kernels have run when their launch returns.
}

template <class Space>
void Event<Space>::hold_back(Stream<Space>& stream) const {
  impl::refuse_in_recording(stream, *this, "holding a stream back until event");
}

template <class Space>
double Event<Space>::milliseconds(const Event& begin, const Event& end) {
  return std::chrono::duration<double, std::milli>(end.native_->time - begin.native_->time).count();
}

ENCORE_IF_SERIAL(template class Event<Kokkos::Serial>;)
ENCORE_IF_OPENMP(template class Event<Kokkos::OpenMP>;)

}  // namespace encore::backend
