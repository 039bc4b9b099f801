// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/memory.hpp>
#include <encore/backend/recorded_graph.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace encore::bench {

using namespace encore::backend;

/// What a device reaches, measured before the benchmarks.
struct Rates {
  double bytes_per_second = 0;  ///< of a large copy, reading and writing
  double flops_per_second = 0;  ///< of a large product of bfloat16 matrices
};

/// Takes up to a second.
template <class Space>
Rates measure_rates();

struct Options {
  std::vector<Backend> backends;   ///< those to run on
  std::map<Backend, Rates> rates;  ///< of each of them
  bool tiles = false;              ///< every kernel of CUTLASS beside the one that is chosen

  template <class Space>
  bool has() const {
    return std::find(backends.begin(), backends.end(), backend_of<Space>()) != backends.end();
  }
};

// One for each family of kernels, in a file of its own. Each adds its benchmarks for options.backends.
void add_activation(const Options& options);
void add_attention(const Options& options);
void add_cross_entropy(const Options& options);
void add_dropout(const Options& options);
void add_embedding(const Options& options);
void add_grouped_products(const Options& options);
void add_mamba(const Options& options);
void add_normalization(const Options& options);
void add_optimizer(const Options& options);
void add_products(const Options& options);
void add_rope(const Options& options);
void add_router(const Options& options);

inline void add_benchmark(const std::string& name, const std::function<void(benchmark::State&)>& function) {
  benchmark::RegisterBenchmark(name.c_str(), function)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

// Device code, in arrays.cpp alone so that the files of the families need none.
/// Numbers between -1 and 1 that look random: what a GPU may draw, and so its clock, depends on the data.
template <class Space, class T>
void fill_with_noise(Stream<Space>& stream, T* data, std::int64_t size, std::uint64_t seed);
/// Bytes of 255, which make a float or bfloat16 not a number.
template <class Space>
void fill_with_poison(Stream<Space>& stream, std::byte* data, std::int64_t size);

/// An array of a benchmark, full of noise.
template <class Space, class T>
class NoiseArray {
 public:
  NoiseArray(Stream<Space>& stream, std::int64_t size, std::uint64_t seed)
      : memory_("benchmark", static_cast<std::size_t>(size) * sizeof(T)) {
    fill_with_noise<Space, T>(stream, data(), size, seed);
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
