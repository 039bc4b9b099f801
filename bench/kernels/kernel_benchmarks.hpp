// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/launch.hpp>
#include <encore/backend/memory.hpp>
#include <encore/backend/recorded_graph.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace encore::bench {

using namespace encore::backend;

struct Options {
  std::vector<Backend> backends;  ///< those to run on
  bool tiles = false;             ///< every kernel of CUTLASS beside the one that is chosen

  template <class Space>
  bool has() const {
    return std::find(backends.begin(), backends.end(), backend_of<Space>()) != backends.end();
  }
};

// One for each family of kernels, in a file of its own. Each adds its benchmarks for options.backends.
void add_grouped_products(const Options& options);
void add_mamba(const Options& options);

inline void add_benchmark(const std::string& name, const std::function<void(benchmark::State&)>& function) {
  benchmark::RegisterBenchmark(name.c_str(), function)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

/// Numbers between -1 and 1 that look random: what a GPU may draw, and so its clock, depends on the data.
template <class T>
struct FillWithNoise {
  T* data;
  std::uint64_t seed;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    std::uint64_t bits = (static_cast<std::uint64_t>(i) + seed * 0x632be59bd9b4e019U) * 0x9e3779b97f4a7c15U;
    bits = (bits ^ (bits >> 31)) * 0xbf58476d1ce4e5b9U;
    bits ^= bits >> 29;
    data[i] = T(static_cast<float>(bits >> 40) * 0x1p-23F - 1.0F);
  }
};

/// An array of a benchmark, full of noise.
template <class Space, class T>
class NoiseArray {
 public:
  NoiseArray(Stream<Space>& stream, std::int64_t size, std::uint64_t seed)
      : memory_("benchmark", static_cast<std::size_t>(size) * sizeof(T)) {
    launch(stream, "noise", {write(data(), static_cast<std::size_t>(size))}, Range{size},
           FillWithNoise<T>{data(), seed});
  }
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }

 private:
  Allocation<Space> memory_;
};

/// A call recorded several times in a row, so that neither its launch nor the wait for its end is in its time.
template <class Space>
class RecordedCall {
 public:
  RecordedCall(Stream<Space>& stream, const std::function<void()>& call)
      : stream_(stream), graph_(stream, "benchmark", [&] {
          for (int i = 0; i < in_a_row; ++i) call();
        }) {
    for (int i = 0; i < 3; ++i) seconds();
  }

  /// Of one call.
  double seconds() {
    const auto start = std::chrono::steady_clock::now();
    graph_.replay();
    stream_.synchronize("benchmark");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / in_a_row;
  }

  double median_seconds(int rounds) {
    std::vector<double> all;
    for (int i = 0; i < rounds; ++i) all.push_back(seconds());
    std::nth_element(all.begin(), all.begin() + rounds / 2, all.end());
    return all[static_cast<std::size_t>(rounds / 2)];
  }

 private:
  static constexpr int in_a_row = is_host_space<Space> ? 1 : 20;

  Stream<Space>& stream_;
  RecordedGraph<Space> graph_;
};

}  // namespace encore::bench
