// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/event.hpp>
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
Event<Kokkos::Cuda>::Event() : native_(std::make_unique<Native>()) {}
template <>
Event<Kokkos::Cuda>::~Event() = default;
template <>
Event<Kokkos::Cuda>::Event(Event&&) noexcept = default;
template <>
Event<Kokkos::Cuda>& Event<Kokkos::Cuda>::operator=(Event&&) noexcept = default;

template <>
void Event<Kokkos::Cuda>::record(Stream<Kokkos::Cuda>& stream) {
  if (stream.mode() == StreamMode::record)
    throw CaptureError("an event cannot be marked inside a recorded run");
  check_cuda(cudaEventRecord(native_->event, stream.execution_space().cuda_stream()), "marking an event");
}

template <>
void Event<Kokkos::Cuda>::wait() const {
  check_cuda(cudaEventSynchronize(native_->event), "waiting for an event");
}

template <>
double Event<Kokkos::Cuda>::milliseconds(const Event& begin, const Event& end) {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin.native_->event, end.native_->event),
             "reading the time between events");
  return milliseconds;
}

}  // namespace encore::backend
