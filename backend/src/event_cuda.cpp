// SPDX-License-Identifier: Apache-2.0
#include "event_refusal.hpp"

#include <encore/backend/launch_cuda.hpp>

namespace encore::backend {

template <>
struct Event<Kokkos::Cuda>::Native {
  cudaEvent_t event = nullptr;

  Native() { check_cuda(cudaEventCreate(&event), "creating an event"); }
  ~Native() { (void)cudaEventDestroy(event); }
  Native(const Native&) = delete;
  Native& operator=(const Native&) = delete;
};

template <>
Event<Kokkos::Cuda>::Event(std::string name) : name_(std::move(name)), native_(std::make_unique<Native>()) {}
template <>
Event<Kokkos::Cuda>::~Event() = default;
template <>
Event<Kokkos::Cuda>::Event(Event&&) noexcept = default;
template <>
Event<Kokkos::Cuda>& Event<Kokkos::Cuda>::operator=(Event&&) noexcept = default;

template <>
void Event<Kokkos::Cuda>::record(Stream<Kokkos::Cuda>& stream) {
  impl::refuse_in_recording(stream, *this, "marking event");
  check_cuda(cudaEventRecord(native_->event, stream.execution_space().cuda_stream()), "marking an event");
}

template <>
void Event<Kokkos::Cuda>::wait(const Stream<Kokkos::Cuda>& stream) const {
  impl::refuse_in_recording(stream, *this, "waiting for event");
  check_cuda(cudaEventSynchronize(native_->event), "waiting for an event");
}

template <>
void Event<Kokkos::Cuda>::hold_back(Stream<Kokkos::Cuda>& stream) const {
  impl::refuse_in_recording(stream, *this, "holding a stream back until event");
  check_cuda(cudaStreamWaitEvent(stream.execution_space().cuda_stream(), native_->event, 0),
             "holding a stream back until an event");
}

template <>
double Event<Kokkos::Cuda>::milliseconds(const Event& begin, const Event& end) {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin.native_->event, end.native_->event),
             "reading the time between events");
  return milliseconds;
}

}  // namespace encore::backend
