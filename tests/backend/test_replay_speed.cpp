// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/launch.hpp>
#include <encore/backend/recorded_graph.hpp>

#include "spaces.hpp"

#include <algorithm>
#include <chrono>

using namespace encore::backend;
using encore::tests::TestArray;

namespace {

struct Halve {
  float* data;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { data[i] = data[i] / 2 + 1; }
};

template <class Call>
double median_seconds(const Call& call) {
  std::vector<double> seconds;
  for (int repeat = 0; repeat < 21; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    call();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + 10);
  return seconds[10];
}

}  // namespace

#if defined(KOKKOS_ENABLE_OPENMP)
TEST_CASE("a chain of 200 small kernels replays at least three times as fast as it runs eagerly on OpenMP") {
  using Space = Kokkos::OpenMP;
  Stream<Space> stream;
  if (stream.threads() < 2) return;  // Nothing is opened or joined then.
  TestArray<Space, float> array(stream, std::vector<float>(256, 1.0F));
  float* const data = array.data();
  const auto chain = [&] {
    for (int kernel = 0; kernel < 200; ++kernel)
      launch(stream, "test::halve", {write(data, 256)}, Range{256}, Halve{data});
  };
  RecordedGraph<Space> graph(stream, "chain", chain);
  for (int warm = 0; warm < 20; ++warm) graph.replay();
  const double replay = median_seconds([&] { graph.replay(); });
  const double eager = median_seconds(chain);
  CAPTURE(eager);
  CAPTURE(replay);
  CHECK(3 * replay <= eager);
}
#endif
