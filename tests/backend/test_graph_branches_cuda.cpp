// SPDX-License-Identifier: Apache-2.0
// Order and kinds of the nodes of recorded CUDA graphs.
#include <encore/backend/launch.hpp>
#include <encore/backend/recorded_graph.hpp>

#include "spaces.hpp"

#include <numeric>
#include <random>

using namespace encore;
using namespace encore::backend;
using encore::tests::TestArray;

namespace {

using Cuda = Kokkos::Cuda;

/// to[i] = from[reversed] * 3 + i + to[i] * keep, slowly in the first blocks, so that a kernel that does not wait for
/// it reads what is not there yet.
struct Mix {
  const double* from;
  double* to;
  std::int64_t size;
  double keep;
  int rounds;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    double value = from[size - 1 - i];
    const int own = i < 256 ? rounds * 20 : rounds;
    for (int round = 0; round < own; ++round) value = value * 0.999 + 0.001 * static_cast<double>(round % 7);
    to[i] = value * 3 + static_cast<double>(i) + to[i] * keep;
  }
};

}  // namespace

TEST_CASE("kernels in branches wait for what their accesses conflict with: replays equal the eager order") {
  Stream<Cuda> stream;
  constexpr std::int64_t size = 1 << 14;
  std::mt19937 generator(7);
  for (int program = 0; program < 20; ++program) {
    std::vector<double> start(size);
    std::iota(start.begin(), start.end(), program);
    std::vector<TestArray<Cuda, double>> arrays, expected;
    for (int i = 0; i < 6; ++i) {
      arrays.emplace_back(stream, start);
      expected.emplace_back(stream, start);
    }
    struct Step {
      std::size_t from, to;
      Branch branch;
      int rounds;
      bool undeclared;
    };
    std::vector<Step> steps;
    for (int i = 0; i < 60; ++i) {
      const std::size_t from = generator() % 6;
      const std::size_t to = (from + 1 + generator() % 5) % 6;
      steps.push_back({from, to, static_cast<Branch>(generator() % 3), static_cast<int>(generator() % 40),
                       generator() % 15 == 0});
    }
    const auto run = [&](std::vector<TestArray<Cuda, double>>& on) {
      for (const Step& step : steps) {
        const BranchScope scope(stream, step.branch);
        const double* from = on[step.from].data();
        double* to = on[step.to].data();
        const Mix mix{from, to, size, 0.25, step.rounds};
        if (step.undeclared)
          launch(stream, "test::mix", {}, Range{size}, mix);
        else
          launch(stream, "test::mix", {read(from, size), write(to, size)}, Range{size}, mix);
      }
    };
    RecordedGraph<Cuda> graph(stream, "branches", [&] { run(arrays); });
    for (int replay = 0; replay < 5; ++replay) {
      graph.replay();
      run(expected);
    }
    for (std::size_t i = 0; i < arrays.size(); ++i) CHECK(arrays[i].get() == expected[i].get());
  }
}

TEST_CASE("clearing and copying inside a recording become kernels and do what they did") {
  Stream<Cuda> stream;
  for (const std::size_t bytes : {1, 3, 4, 16, 40, 1000, 4096, 100001}) {
    const std::size_t elements = bytes / 8 + 4;
    std::vector<double> start(elements);
    std::iota(start.begin(), start.end(), 1.0);
    TestArray<Cuda, double> cleared(stream, start), copied(stream, start), source(stream, start),
        eager_cleared(stream, start), eager_copied(stream, start);
    const auto body = [&](const auto& to_clear, const auto& to_copy) {
      auto* clear = reinterpret_cast<std::byte*>(to_clear.data()) + 8;
      auto* copy = reinterpret_cast<std::byte*>(to_copy.data()) + 5;
      stream.clear(clear, bytes, "test::clear");
      stream.copy(copy, source.data(), bytes, "test::copy");
    };
    RecordedGraph<Cuda> graph(stream, "memory", [&] { body(cleared, copied); });
    CHECK(graph.nodes() == 2);
    CHECK(graph.memory_nodes() == 0);
    graph.replay();
    body(eager_cleared, eager_copied);
    CHECK(cleared.get() == eager_cleared.get());
    CHECK(copied.get() == eager_copied.get());
  }
}

TEST_CASE("a recording of one branch is a chain, and one of several may overlap") {
  Stream<Cuda> stream;
  constexpr std::int64_t size = 4096;
  TestArray<Cuda, double> a(stream, std::vector<double>(size, 1.0)),
      b(stream, std::vector<double>(size, 2.0));
  const auto body = [&](Branch branch) {
    for (int i = 0; i < 10; ++i) {
      const BranchScope scope(stream, i % 2 == 0 ? Branch::main : branch);
      double* to = i % 2 == 0 ? a.data() : b.data();
      launch(stream, "test::mix", {write(to, size)}, Range{size}, Mix{to, to, size, 0, 1});
    }
  };
  const RecordedGraph<Cuda> chain(stream, "chain", [&] { body(Branch::main); });
  const RecordedGraph<Cuda> fork(stream, "fork", [&] { body(Branch::beside); });
  CHECK(chain.longest_chain() == 10);
  CHECK(fork.longest_chain() == 5);
}
