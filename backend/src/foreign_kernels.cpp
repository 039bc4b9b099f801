// SPDX-License-Identifier: Apache-2.0
#include "foreign_kernels.hpp"

#include <encore/backend/error.hpp>

#include <Kokkos_Core.hpp>

#include <mutex>

namespace encore::backend::impl {

namespace {

namespace tools = Kokkos::Tools::Experimental;

// Kokkos keeps one table of callbacks for the process, and hands them no pointer of ours.
std::mutex watches_mutex;
int watches = 0;
tools::EventSet without_watch;
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
  if (without_watch.*Callback != nullptr) (without_watch.*Callback)(label, device, kernel);
}

void begin_copy(Kokkos::Tools::SpaceHandle to_space, const char* to, const void* to_data,
                Kokkos::Tools::SpaceHandle from_space, const char* from, const void* from_data,
                std::uint64_t bytes) {
  refuse("Kokkos::deep_copy to", to);
  if (without_watch.begin_deep_copy != nullptr)
    without_watch.begin_deep_copy(to_space, to, to_data, from_space, from, from_data, bytes);
}

}  // namespace

ForeignKernelWatch::ForeignKernelWatch(const std::string& graph) : before_(recorded_graph) {
  recorded_graph = &graph;
  const std::lock_guard lock(watches_mutex);
  if (watches++ > 0) return;
  without_watch = tools::get_callbacks();
  tools::EventSet watched = without_watch;
  watched.begin_parallel_for = begin_kernel<&tools::EventSet::begin_parallel_for>;
  watched.begin_parallel_reduce = begin_kernel<&tools::EventSet::begin_parallel_reduce>;
  watched.begin_parallel_scan = begin_kernel<&tools::EventSet::begin_parallel_scan>;
  watched.begin_deep_copy = begin_copy;
  tools::set_callbacks(watched);
}

ForeignKernelWatch::~ForeignKernelWatch() {
  recorded_graph = before_;
  const std::lock_guard lock(watches_mutex);
  if (--watches == 0) tools::set_callbacks(without_watch);
}

}  // namespace encore::backend::impl
