// SPDX-License-Identifier: Apache-2.0
#include "copy_event.hpp"
#include "tool_callbacks.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>

#include <cuda_runtime.h>

namespace encore::backend {

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();
  const std::string sentence =
      std::string(what) + ": CUDA says " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status);
  if (status == cudaErrorMemoryAllocation) throw OutOfMemoryError(sentence);
  throw DeviceError(sentence);
}

namespace {

std::shared_ptr<void> make_non_blocking_stream() {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  return {stream, [](void* owned) { cudaStreamDestroy(static_cast<cudaStream_t>(owned)); }};
}

}  // namespace

template <>
Stream<Kokkos::Cuda>::Stream()
    : owned_native_stream_(make_non_blocking_stream()),
      space_(static_cast<cudaStream_t>(owned_native_stream_.get())) {
  // Kokkos clears the instance's scratch on the legacy stream, which a non-blocking stream does not wait for.
  Kokkos::fence("encore: new stream");
  impl::note_stream(this);
}

template <>
Stream<Kokkos::Cuda>::Stream(const Kokkos::Cuda& instance) : space_(instance) {
  if (instance.cuda_stream() == nullptr)
    throw DeviceError(
        "the execution space instance uses CUDA's legacy stream, which cannot be captured: make it "
        "from a stream created with cudaStreamNonBlocking");
  impl::note_stream(this);
}

template <>
Stream<Kokkos::Cuda>::~Stream() {
  impl::forget_stream(this);
}

template <>
int Stream<Kokkos::Cuda>::threads() const {
  return 1;
}

template <>
void Stream<Kokkos::Cuda>::refuse_while_recording(const char* what, const char* label) const {
  if (mode_ != StreamMode::record) return;
  throw CaptureError(std::string(what) + " '" + label +
                     "' inside a recorded run: move it before or after the run, or leave the run eager");
}

template <>
void Stream<Kokkos::Cuda>::synchronize(const char* reason) {
  refuse_while_recording("synchronization", reason);
  if (runs_nothing()) return;
  ++counters_.synchronizations;
  check_cuda(cudaStreamSynchronize(space_.cuda_stream()), reason);
}

template <>
void Stream<Kokkos::Cuda>::copy(void* destination, const void* source, std::size_t bytes, const char* label) {
  const Accesses accesses{read(static_cast<const std::byte*>(source), bytes),
                          write(static_cast<const std::byte*>(destination), bytes)};
  launch_native(*this, label, accesses, [&] {
    check_cuda(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToDevice, space_.cuda_stream()),
               label);
  });
}

template <>
void Stream<Kokkos::Cuda>::copy_to_host(void* host, const void* device, std::size_t bytes,
                                        const char* label) {
  refuse_while_recording("host copy", label);
  if (runs_nothing()) return;
  ++counters_.host_copies;
  const impl::CopyEvent event(label, Kokkos::HostSpace::name(), host, Kokkos::CudaSpace::name(), device,
                              bytes);
  check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, space_.cuda_stream()), label);
}

template <>
void Stream<Kokkos::Cuda>::copy_to_device(void* device, const void* host, std::size_t bytes,
                                          const char* label) {
  refuse_while_recording("host copy", label);
  if (runs_nothing()) return;
  ++counters_.host_copies;
  const impl::CopyEvent event(label, Kokkos::CudaSpace::name(), device, Kokkos::HostSpace::name(), host,
                              bytes);
  check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, space_.cuda_stream()), label);
}

template <>
void Stream<Kokkos::Cuda>::clear(void* destination, std::size_t bytes, const char* label) {
  launch_native(*this, label, {write(static_cast<const std::byte*>(destination), bytes)},
                [&] { check_cuda(cudaMemsetAsync(destination, 0, bytes, space_.cuda_stream()), label); });
}

}  // namespace encore::backend
