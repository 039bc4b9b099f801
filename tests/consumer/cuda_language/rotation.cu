// SPDX-License-Identifier: Apache-2.0
// A kernel in plain CUDA and one through Encore's gateway, recorded into one graph.
#include "rotation.hpp"

#include <encore/backend/launch.hpp>
#include <encore/backend/memory.hpp>
#include <encore/backend/recorded_graph.hpp>

namespace backend = encore::backend;
using Space = Kokkos::Cuda;

namespace {

__global__ void turn(float2* pairs, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) pairs[i] = make_float2(-pairs[i].y, pairs[i].x);
}

struct Double {
  backend::Vector<float, Space> values;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { values(i) *= 2; }
};

}  // namespace

std::vector<float> turned_and_doubled(std::vector<float> pairs, int replays) {
  backend::Stream<Space> stream;
  const std::size_t bytes = pairs.size() * sizeof(float);
  const backend::Allocation<Space> memory("pairs", bytes);
  const backend::Vector<float, Space> values(reinterpret_cast<float*>(memory.data()), pairs.size());
  stream.copy_to_device(values.data(), pairs.data(), bytes, "start");

  const int count = static_cast<int>(pairs.size() / 2);
  backend::RecordedGraph<Space> graph(stream, "turn and double", [&] {
    backend::launch_native(stream, "turn", {backend::read(values), backend::write(values)}, [&] {
      turn<<<(count + 127) / 128, 128, 0, stream.execution_space().cuda_stream()>>>(
          reinterpret_cast<float2*>(values.data()), count);
    });
    backend::launch(stream, "double", {backend::read(values), backend::write(values)},
                    backend::Range{static_cast<std::int64_t>(pairs.size())}, Double{values});
  });
  for (int i = 0; i < replays; ++i) graph.replay();
  stream.copy_to_host(pairs.data(), values.data(), bytes, "end");
  stream.synchronize("end");
  return pairs;
}
