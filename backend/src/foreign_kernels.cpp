// SPDX-License-Identifier: Apache-2.0
#include "foreign_kernels.hpp"
#include "tool_callbacks.hpp"

#include <encore/backend/error.hpp>

#include <Kokkos_Core.hpp>

namespace encore::backend::impl {

namespace {

thread_local const std::string* recorded_graph = nullptr;

void refuse(const std::string& what, const char* label) {
  if (recorded_graph == nullptr) return;
  throw CaptureError("recording '" + *recorded_graph + "': " + what + " '" + label +
                     "' was started past Encore and would not be replayed: start kernels by backend::launch "
                     "or launch_kokkos, copy by "
                     "Stream::copy, and make Views before the recording");
}

template <auto Callback>
void begin_kernel(const char* label, const std::uint32_t device, std::uint64_t* kernel) {
  refuse("the Kokkos kernel", label);
  if (loaded_callbacks().*Callback != nullptr) (loaded_callbacks().*Callback)(label, device, kernel);
}

void begin_copy(Kokkos::Tools::SpaceHandle to_space, const char* to, const void* to_data,
                Kokkos::Tools::SpaceHandle from_space, const char* from, const void* from_data,
                std::uint64_t bytes) {
  refuse("Kokkos::deep_copy to", to);
  if (loaded_callbacks().begin_deep_copy != nullptr)
    loaded_callbacks().begin_deep_copy(to_space, to, to_data, from_space, from, from_data, bytes);
}

void refuse_kernels_and_copies(ToolCallbacks& callbacks) {
  callbacks.begin_parallel_for = begin_kernel<&ToolCallbacks::begin_parallel_for>;
  callbacks.begin_parallel_reduce = begin_kernel<&ToolCallbacks::begin_parallel_reduce>;
  callbacks.begin_parallel_scan = begin_kernel<&ToolCallbacks::begin_parallel_scan>;
  callbacks.begin_deep_copy = begin_copy;
}

}  // namespace

ForeignKernelWatch::ForeignKernelWatch(const std::string& graph)
    : before_(recorded_graph), watches_(watch_callbacks(refuse_kernels_and_copies)) {
  recorded_graph = &graph;
}

ForeignKernelWatch::~ForeignKernelWatch() {
  recorded_graph = before_;
  if (watches_) end_watching_callbacks();
}

}  // namespace encore::backend::impl
