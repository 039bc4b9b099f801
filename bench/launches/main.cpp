// SPDX-License-Identifier: Apache-2.0
//
// What launches through the gateway cost, one by one and replayed, on each backend of the build:
//   chain     200 small kernels, each of which needs the one before
//   chains    8 such chains of 25, independent of each other
//   large     20 kernels of 4 Mi floats
//   tiny      1000 kernels of 32 floats, each of which needs the one before
// and `record`: what it takes to record `tiny` and make it replayable. `us_per_node` is the time of one kernel.
// Names are program/what/backend. Debian's benchmark library calls itself a debug build: that is about its own code.
#include <encore/backend/device.hpp>
#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/memory.hpp>
#include <encore/backend/recorded_graph.hpp>
#include <encore/backend/runtime.hpp>
#include <encore/backend/version.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace encore::backend;
using Clock = std::chrono::steady_clock;

/// y = y * 0.999 + 0.001 * x
struct Approach {
  const float* x;
  float* y;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { y[i] = y[i] * 0.999F + 0.001F * x[i]; }
};

struct Kernel {
  std::int64_t x, y, size;  ///< places in the array
};
using Kernels = std::vector<Kernel>;

/// Sizes of 64 to 2048; the two halves of the chain's memory take turns.
Kernels small_chain(std::int64_t place, int length) {
  Kernels kernels;
  for (int i = 0; i < length; ++i) {
    const std::int64_t target = i % 2 * 2048;
    kernels.push_back({place + 2048 - target, place + target, std::int64_t(64) << i % 6});
  }
  return kernels;
}

Kernels independent_chains() {
  Kernels kernels;
  for (std::int64_t chain = 0; chain < 8; ++chain)
    for (const Kernel& kernel : small_chain(chain * 4096, 25)) kernels.push_back(kernel);
  return kernels;
}

Kernels large_chain() {
  constexpr std::int64_t size = 4 << 20;
  Kernels kernels;
  for (int i = 0; i < 20; ++i) kernels.push_back({(i + 1) % 2 * size, i % 2 * size, size});
  return kernels;
}

Kernels tiny_chain() { return Kernels(1000, Kernel{32, 0, 32}); }

template <class Space>
class Launches {
 public:
  explicit Launches(Kernels kernels) : kernels_(std::move(kernels)) {
    std::int64_t end = 0;
    for (const Kernel& kernel : kernels_) end = std::max(end, std::max(kernel.x, kernel.y) + kernel.size);
    memory_ = Allocation<Space>("benchmark", static_cast<std::size_t>(end) * sizeof(float));
    stream_.clear(memory_.data(), memory_.bytes(), "clear");
    stream_.synchronize("benchmark");
  }

  void run() {
    auto* data = reinterpret_cast<float*>(memory_.data());
    for (const Kernel& kernel : kernels_) {
      const float* x = data + kernel.x;
      float* y = data + kernel.y;
      const auto count = static_cast<std::size_t>(kernel.size);
      launch(stream_, "approach", {read(x, count), write(y, count)}, Range{kernel.size}, Approach{x, y});
    }
  }
  RecordedGraph<Space> record() {
    return RecordedGraph<Space>(stream_, "benchmark", [&] { run(); });
  }

  /// Times the call; several in a row where that only queues work.
  template <class Call>
  void time(benchmark::State& state, const Call& call) {
    constexpr int in_a_row = is_host_space<Space> ? 1 : 20;
    for (int i = 0; i < 20; ++i) call();  // A host replay measures and plans in the first ones.
    stream_.synchronize("benchmark");
    for (auto iteration : state) {
      (void)iteration;
      const auto start = Clock::now();
      for (int i = 0; i < in_a_row; ++i) call();
      stream_.synchronize("benchmark");
      add(state, std::chrono::duration<double>(Clock::now() - start).count() / in_a_row);
    }
    report(state);
  }

  void add(benchmark::State& state, double seconds) {
    state.SetIterationTime(seconds);
    seconds_ += seconds;
  }
  void report(benchmark::State& state) const {
    const double nodes = static_cast<double>(kernels_.size()) * static_cast<double>(state.iterations());
    state.counters["us_per_node"] = seconds_ * 1e6 / nodes;
  }

 private:
  Kernels kernels_;
  Stream<Space> stream_;
  Allocation<Space> memory_;
  double seconds_ = 0;
};

template <class Space>
void time_eager(benchmark::State& state, Kernels (*program)()) {
  Launches<Space> launches(program());
  launches.time(state, [&] { launches.run(); });
}

template <class Space>
void time_replay(benchmark::State& state, Kernels (*program)()) {
  Launches<Space> launches(program());
  RecordedGraph<Space> graph = launches.record();
  launches.time(state, [&] { graph.replay(); });
  state.counters["graph_bytes"] = static_cast<double>(graph.device_bytes());
}

template <class Space>
void time_record(benchmark::State& state, Kernels (*program)()) {
  Launches<Space> launches(program());
  launches.record().replay();
  for (auto iteration : state) {
    (void)iteration;
    const RecordedGraph<Space> graph = launches.record();
    launches.add(state, graph.record_seconds() + graph.instantiate_seconds());
  }
  launches.report(state);
}

void add_benchmark(const std::string& name, const std::function<void(benchmark::State&)>& function) {
  benchmark::RegisterBenchmark(name.c_str(), function)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

template <class Space>
void add_benchmarks() {
  const std::string backend(name_of(backend_of<Space>()));
  const std::pair<const char*, Kernels (*)()> programs[] = {{"chain", [] { return small_chain(0, 200); }},
                                                            {"chains", independent_chains},
                                                            {"large", large_chain},
                                                            {"tiny", tiny_chain}};
  for (const auto& [name, program] : programs) {
    const auto kernels = program;
    add_benchmark(std::string(name) + "/eager/" + backend,
                  [=](benchmark::State& state) { time_eager<Space>(state, kernels); });
    add_benchmark(std::string(name) + "/replay/" + backend,
                  [=](benchmark::State& state) { time_replay<Space>(state, kernels); });
  }
  add_benchmark("tiny/record/" + backend,
                [=](benchmark::State& state) { time_record<Space>(state, tiny_chain); });
  benchmark::AddCustomContext(backend, describe_device<Space>());
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  try {
    const Runtime runtime;
    benchmark::AddCustomContext("commit", std::string(git_revision()));
#define ENCORE_ADD(SPACE) add_benchmarks<SPACE>();
    ENCORE_FOR_EACH_SPACE(ENCORE_ADD)
#undef ENCORE_ADD
    benchmark::RunSpecifiedBenchmarks();
  } catch (const encore::Error& error) {
    std::fprintf(stderr, "encore_launch_benchmark: %s\n", error.what());
    return error.exit_code();
  }
}
