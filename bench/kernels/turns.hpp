// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernel_benchmarks.hpp"
#include "workloads.hpp"

#include <cmath>
#include <memory>

// How a kernel is timed as in a step: with operands that a small one finds in the cache, and a large one does not.

namespace encore::bench {

/// What a call must move and compute at least.
struct Work {
  double bytes = 0;
  double flops = 0;
};

/// An array that a kernel writes, full of NaN.
template <class Space, class T>
class PoisonedArray {
 public:
  PoisonedArray(Stream<Space>& stream, std::int64_t size)
      : memory_("benchmark", static_cast<std::size_t>(size) * sizeof(T)) {
    fill_with_poison<Space>(stream, memory_.data(), static_cast<std::int64_t>(memory_.bytes()));
  }
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }

 private:
  Allocation<Space> memory_;
};

/// An array of given values.
template <class Space, class T>
class GivenArray {
 public:
  GivenArray(Stream<Space>& stream, const std::vector<T>& values)
      : memory_("benchmark", values.size() * sizeof(T)) {
    stream.copy_to_device(memory_.data(), values.data(), memory_.bytes(), "benchmark");
    stream.synchronize("benchmark");
  }
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }

 private:
  Allocation<Space> memory_;
};

/// Sets of operands that are taken in turn: two caches full, or one set that stays in the cache.
template <class Space>
std::uint64_t sets_of(double bytes) {
  constexpr double cache = 64e6;  // an H200's second level has 50 MiB
  constexpr double most = 16;
  if (is_host_space<Space> || 4 * bytes < cache) return 1;
  return static_cast<std::uint64_t>(std::clamp(std::ceil(2 * cache / bytes), 1.0, most));
}

inline void set_counters(benchmark::State& state, const Work& work, const Rates& rates, double seconds) {
  if (work.bytes > 0) {
    state.counters["GB/s"] = work.bytes / seconds * 1e-9;
    state.counters["of_copy"] = work.bytes / seconds / rates.bytes_per_second;
  }
  if (work.flops > 0) {
    state.counters["TFLOP/s"] = work.flops / seconds * 1e-12;
    state.counters["of_product"] = work.flops / seconds / rates.flops_per_second;
  }
}

/// Times what make(stream, seed) returns, a call that owns a set of operands.
template <class Space, class Make>
void time_in_turn(benchmark::State& state, const Work& work, const Rates& rates, Make make) {
  Stream<Space> stream;
  std::vector<std::function<void()>> calls;
  for (std::uint64_t set = 0; set < sets_of<Space>(work.bytes); ++set)
    calls.push_back(make(stream, 100 * set));
  std::size_t next = 0;
  RecordedCall<Space> call(stream, [&] { calls[next++ % calls.size()](); });
  double seconds = 0;
  for (auto iteration : state) {
    (void)iteration;
    const double once = call.seconds();
    state.SetIterationTime(once);
    seconds += once;
  }
  set_counters(state, work, rates, seconds / static_cast<double>(state.iterations()));
}

/// Adds a benchmark `<kernel>/<workload>/<backend>` for each workload that `applies` to and that the space is fast
/// enough for. work(workload) is what a call does, make(stream, seed, workload) the call.
template <class Space, class Applies, class WorkOf, class Make>
void add_for_workloads(const Options& options, const std::string& kernel, Applies applies, WorkOf work,
                       Make make) {
  const Rates rates = options.rates.at(backend_of<Space>());
  for (const Workload& workload : workloads) {
    if (!applies(workload) || (is_host_space<Space> && !workload.small)) continue;
    add_benchmark(kernel + "/" + workload.name + "/" + std::string(name_of(backend_of<Space>())),
                  [=](benchmark::State& state) {
                    time_in_turn<Space>(
                        state, work(workload), rates,
                        [&](Stream<Space>& stream, std::uint64_t seed) -> std::function<void()> {
                          return make(stream, seed, workload);
                        });
                  });
  }
}

inline bool always(const Workload&) { return true; }
inline bool has_experts(const Workload& workload) { return workload.experts > 0; }
inline bool has_mlp(const Workload& workload) { return workload.experts == 0; }

/// One of something for all sets of a benchmark: a library's handle, whose plans take long to make.
template <class Thing>
class OneForAll {
 public:
  template <class Make>
  std::shared_ptr<Thing> get(const Make& make) const {
    std::shared_ptr<Thing> thing = thing_->lock();
    if (thing == nullptr) *thing_ = thing = make();
    return thing;
  }

 private:
  std::shared_ptr<std::weak_ptr<Thing>> thing_ = std::make_shared<std::weak_ptr<Thing>>();
};

/// Bytes of this many elements.
template <class T>
double bytes_of(std::int64_t elements) {
  return static_cast<double>(elements) * sizeof(T);
}

}  // namespace encore::bench

/// Defines add_<family>, which calls add_<family>_to<Space>(options) for each space that is asked for.
#define ENCORE_ADD_TO(SPACE) \
  if (options.has<SPACE>()) add_to<SPACE>(options);
#define ENCORE_DEFINE_FAMILY(FAMILY) \
  void add_##FAMILY(const Options& options) { ENCORE_FOR_EACH_SPACE(ENCORE_ADD_TO) }
