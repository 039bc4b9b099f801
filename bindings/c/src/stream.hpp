// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/c/stream.h>
#include <encore/backend/device.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "runtime.hpp"

namespace encore::c {

/// A device on a stream of its own, or on the caller's.
template <class Space>
struct SpaceDevice {
  SpaceDevice() : device(0) {}
  explicit SpaceDevice(const Space& callers) : instance(callers), device(*instance, 0) {}

  std::optional<Space> instance;  ///< outlives the device
  backend::Device<Space> device;
};

#define ENCORE_DEVICE_ALTERNATIVE(SPACE) , std::unique_ptr<SpaceDevice<SPACE>>
using AnyDevice = std::variant<std::monostate ENCORE_FOR_EACH_SPACE(ENCORE_DEVICE_ALTERNATIVE)>;
#undef ENCORE_DEVICE_ALTERNATIVE

/// What a stream's handle and its graphs share.
class StreamState : public Object {
 public:
  StreamState(std::shared_ptr<RuntimeState> runtime, encore_backend backend, void* native);
  ~StreamState() override { end(); }

  encore_backend backend() const { return backend_; }
  std::recursive_mutex& mutex() const { return mutex_; }

  /// Calls `use(backend::Device<Space>&)`, one thread at a time.
  template <class Use>
  decltype(auto) with_device(const Use& use) {
    const std::lock_guard lock(mutex_);
    return std::visit(
        [&](auto& alternative) -> decltype(use(std::get<1>(device_)->device)) {
          if constexpr (std::is_same_v<std::decay_t<decltype(alternative)>, std::monostate>) {
            throw UsageError("'" + name() + "' has ended together with Kokkos: it can only be destroyed");
          } else {
            return use(alternative->device);
          }
        },
        device_);
  }

  /// Throws CaptureError inside a recording.
  void require_no_recording(const char* what);

  void* allocate(std::size_t bytes, const std::string& label);
  void free(void* memory);
  /// Has the graph that is being recorded share the ownership of all allocations.
  void keep_allocations();
  /// A label that lives as long as the stream.
  const char* label(const char* text) { return labels_.insert(text).first->c_str(); }

  /// Greater than 0 while a caller's function runs that was given the stream.
  std::atomic<int> callbacks = 0;

 protected:
  void end() noexcept override;

 private:
  encore_backend backend_;
  mutable std::recursive_mutex mutex_;
  AnyDevice device_;
  std::map<void*, std::shared_ptr<const void>> allocations_;
  std::set<std::string> labels_;  ///< its elements keep their addresses
};

std::string_view name_of(encore_type type);

/// Calls `use.operator()<Space, T>(backend::Device<Space>&)` for the stream's space and the type.
template <class Use>
void with_type(StreamState& stream, encore_type type, const Use& use) {
  stream.with_device([&]<class Space>(backend::Device<Space>& device) {
    if (type == ENCORE_FLOAT32) return use.template operator()<Space, float>(device);
    if (type == ENCORE_BFLOAT16) return use.template operator()<Space, backend::bfloat16>(device);
#if defined(KOKKOS_ENABLE_SERIAL)
    if constexpr (std::is_same_v<Space, Kokkos::Serial>)
      if (type == ENCORE_FLOAT64) return use.template operator()<Space, double>(device);
#endif
    throw ConfigurationError("kernels of type " + std::string(name_of(type)) + " do not exist on " +
                             std::string(backend::name_of(backend::backend_of<Space>())) +
                             ": use float32 or bfloat16, or float64 on serial");
  });
}

/// The same with a type of gradients: `use.operator()<Space, T, G>`.
template <class Use>
void with_types(StreamState& stream, encore_type type, encore_type gradient_type, const Use& use) {
  with_type(stream, type, [&]<class Space, class T>(backend::Device<Space>& device) {
    if (gradient_type == type) return use.template operator()<Space, T, T>(device);
    if constexpr (std::is_same_v<T, backend::bfloat16>)
      if (gradient_type == ENCORE_FLOAT32) return use.template operator()<Space, T, float>(device);
    throw ConfigurationError("gradients of type " + std::string(name_of(gradient_type)) +
                             " beside weights of type " + std::string(name_of(type)) +
                             " do not exist: use the same, or float32 beside bfloat16");
  });
}

/// Bytes of the type in which sums are formed. Throws ConfigurationError for a type that kernels do not have.
std::size_t accumulator_size(encore_type type);

}  // namespace encore::c

struct encore_stream {
  std::shared_ptr<encore::c::StreamState> state;
};

namespace encore::c {

/// The stream behind a handle. Throws UsageError for NULL.
StreamState& state_of(const encore_stream* stream);

}  // namespace encore::c
