// SPDX-License-Identifier: Apache-2.0
#include "stream.hpp"

#include <encore/backend/recorded_resource.hpp>

namespace encore::c {

namespace {

#if defined(KOKKOS_ENABLE_CUDA)
std::unique_ptr<SpaceDevice<Kokkos::Cuda>> make_cuda_device(void* native) {
  if (native == nullptr) return std::make_unique<SpaceDevice<Kokkos::Cuda>>();
  if (native == cudaStreamLegacy)
    throw DeviceError(
        "argument 'native' is CUDA's legacy stream, which cannot be captured: make one with "
        "cudaStreamNonBlocking, or pass NULL");
  return std::make_unique<SpaceDevice<Kokkos::Cuda>>(Kokkos::Cuda(static_cast<cudaStream_t>(native)));
}
void* native_of(const Kokkos::Cuda& instance) { return instance.cuda_stream(); }
#endif
template <class Space>
void* native_of(const Space&) {
  return nullptr;
}

AnyDevice make_device(encore_backend backend, void* native) {
  if (backend != ENCORE_CUDA && native != nullptr)
    throw UsageError("argument 'native' is for CUDA alone: pass NULL for a stream on a host");
  ENCORE_IF_SERIAL(if (backend == ENCORE_SERIAL) return std::make_unique<SpaceDevice<Kokkos::Serial>>();)
  ENCORE_IF_OPENMP(if (backend == ENCORE_OPENMP) return std::make_unique<SpaceDevice<Kokkos::OpenMP>>();)
  ENCORE_IF_CUDA(if (backend == ENCORE_CUDA) return make_cuda_device(native);)
  if (backend < ENCORE_SERIAL || backend > ENCORE_CUDA)
    throw UsageError("backend " + std::to_string(static_cast<int>(backend)) + " is none of encore_backend");
  throw DeviceError("this build of Encore has no " +
                    std::string(backend::name_of(static_cast<backend::Backend>(backend))) +
                    " backend: build it with a Kokkos that has");
}

std::string name_of_stream(encore_backend backend) {
  return "stream on " + std::string(backend::name_of(static_cast<backend::Backend>(backend)));
}

}  // namespace

StreamState::StreamState(std::shared_ptr<RuntimeState> runtime, encore_backend backend, void* native)
    : Object(std::move(runtime), name_of_stream(backend)),
      backend_(backend),
      device_(make_device(backend, native)) {}

void StreamState::end() noexcept {
  allocations_.clear();
  device_ = std::monostate();
}

void StreamState::require_no_recording(const char* what) {
  with_device([&](auto& device) {
    if (device.stream().mode() != backend::StreamMode::execute)
      throw CaptureError(std::string(what) + " inside a recording: move it before or after");
  });
}

void* StreamState::allocate(std::size_t bytes, const std::string& label) {
  require_no_recording("encore_allocate");
  return with_device([&]<class Space>(backend::Device<Space>&) -> void* {
    const auto allocation = std::make_shared<const backend::Allocation<Space>>(label, bytes == 0 ? 1 : bytes);
    allocations_.emplace(allocation->data(), allocation);
    return allocation->data();
  });
}

void StreamState::free(void* memory) {
  if (memory == nullptr) return;
  require_no_recording("encore_free");
  with_device([&](auto& device) {
    const auto found = allocations_.find(memory);
    if (found == allocations_.end())
      throw UsageError("memory that encore_allocate did not give on this stream, or that was freed already");
    device.stream().synchronize("encore_free");
    allocations_.erase(found);
  });
}

void StreamState::keep_allocations() {
  with_device([&](auto& device) {
    for (const auto& [address, allocation] : allocations_)
      backend::keep_for_recording(device.stream(), allocation);
  });
}

std::string_view name_of(encore_type type) {
  switch (type) {
    case ENCORE_FLOAT64: return "float64";
    case ENCORE_FLOAT32: return "float32";
    case ENCORE_BFLOAT16: return "bfloat16";
    case ENCORE_INT32: return "int32";
  }
  return "unknown";
}

std::size_t accumulator_size(encore_type type) {
  if (type == ENCORE_FLOAT64) return sizeof(double);
  if (type == ENCORE_FLOAT32 || type == ENCORE_BFLOAT16) return sizeof(float);
  throw ConfigurationError("kernels of type " + std::string(name_of(type)) + " do not exist");
}

StreamState& state_of(const encore_stream* stream) {
  require_pointer(stream, "stream");
  return *stream->state;
}

}  // namespace encore::c

using encore::c::guarded;
using encore::c::require_pointer;
using encore::c::state_of;

extern "C" {

int encore_stream_create(encore_runtime* runtime, encore_backend backend, void* native,
                         encore_stream** stream) {
  return guarded([&] {
    require_pointer(runtime, "runtime");
    require_pointer(stream, "stream");
    *stream = new encore_stream{std::make_shared<encore::c::StreamState>(runtime->state, backend, native)};
  });
}

int encore_stream_destroy(encore_stream* stream) {
  return guarded([&] {
    if (stream == nullptr) return;
    encore::require<encore::UsageError>(stream->state->callbacks == 0,
                                        "encore_stream_destroy inside a function that was given the stream: "
                                        "move it behind the recording");
    delete stream;
  });
}

int encore_stream_native(const encore_stream* stream, void** native) {
  return guarded([&] {
    require_pointer(native, "native");
    *native = state_of(stream).with_device(
        [](auto& device) { return encore::c::native_of(device.stream().execution_space()); });
  });
}

int encore_stream_backend(const encore_stream* stream, encore_backend* backend) {
  return guarded([&] {
    require_pointer(backend, "backend");
    *backend = state_of(stream).backend();
  });
}

int encore_stream_description(const encore_stream* stream, char* text, size_t size, size_t* length) {
  return guarded([&] {
    const std::string line =
        state_of(stream).with_device([]<class Space>(encore::backend::Device<Space>& device) {
          return encore::backend::describe_device<Space>() + "; " + device.blas().description();
        });
    encore::c::write_text(line, text, size, length);
  });
}

int encore_stream_synchronize(encore_stream* stream) {
  return guarded([&] {
    state_of(stream).require_no_recording("encore_stream_synchronize");
    state_of(stream).with_device(
        [](auto& device) { device.stream().synchronize("encore_stream_synchronize"); });
  });
}

int encore_allocate(encore_stream* stream, size_t bytes, const char* label, void** memory) {
  return guarded([&] {
    require_pointer(memory, "memory");
    *memory = state_of(stream).allocate(bytes, label == nullptr ? "memory" : label);
  });
}

int encore_free(encore_stream* stream, void* memory) {
  return guarded([&] { state_of(stream).free(memory); });
}

int encore_copy_to_device(encore_stream* stream, void* device, const void* host, size_t bytes) {
  return guarded([&] {
    if (bytes == 0) return;
    require_pointer(device, "device");
    require_pointer(host, "host");
    state_of(stream).require_no_recording("encore_copy_to_device");
    state_of(stream).with_device([&](auto& on) {
      on.stream().copy_to_device(device, host, bytes, "encore_copy_to_device");
      on.stream().synchronize("encore_copy_to_device");
    });
  });
}

int encore_copy_to_host(encore_stream* stream, void* host, const void* device, size_t bytes) {
  return guarded([&] {
    if (bytes == 0) return;
    require_pointer(host, "host");
    require_pointer(device, "device");
    state_of(stream).require_no_recording("encore_copy_to_host");
    state_of(stream).with_device([&](auto& on) {
      on.stream().copy_to_host(host, device, bytes, "encore_copy_to_host");
      on.stream().synchronize("encore_copy_to_host");
    });
  });
}

int encore_copy(encore_stream* stream, void* destination, const void* source, size_t bytes) {
  return guarded([&] {
    if (bytes == 0) return;
    require_pointer(destination, "destination");
    require_pointer(source, "source");
    state_of(stream).with_device(
        [&](auto& on) { on.stream().copy(destination, source, bytes, "encore_copy"); });
  });
}

int encore_clear(encore_stream* stream, void* memory, size_t bytes) {
  return guarded([&] {
    if (bytes == 0) return;
    require_pointer(memory, "memory");
    state_of(stream).with_device([&](auto& on) { on.stream().clear(memory, bytes, "encore_clear"); });
  });
}

int encore_stream_counters(const encore_stream* stream, uint64_t* launches, uint64_t* replays) {
  return guarded([&] {
    state_of(stream).with_device([&](auto& on) {
      if (launches != nullptr) *launches = on.stream().counters().launches;
      if (replays != nullptr) *replays = on.stream().counters().replays;
    });
  });
}

}  // extern "C"
