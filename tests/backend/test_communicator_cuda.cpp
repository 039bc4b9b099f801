// SPDX-License-Identifier: Apache-2.0
// NCCL in a group of one: what a single GPU can show of it.
#include <encore/backend/communicator.hpp>
#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/nccl_transport.hpp>
#include <encore/backend/recorded_graph.hpp>

#include "spaces.hpp"

using namespace encore;
using namespace encore::backend;
using encore::tests::TestArray;

namespace {

using Cuda = Kokkos::Cuda;

struct Double {
  float* data;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { data[i] *= 2; }
};

/// Every operation of a group of one, each between kernels of its neighbours: doubles `values` twice.
void double_twice(Stream<Cuda>& stream, Communicator<Cuda>& communicator,
                  const TestArray<Cuda, float>& values, const TestArray<Cuda, float>& other) {
  const auto count = static_cast<std::int64_t>(values.size());
  const Vector<float, Cuda> first(values.data(), values.size()), second(other.data(), other.size());
  launch(stream, "test::double", {write(first)}, Range{count}, Double{values.data()});
  communicator.all_reduce<float>(stream, "test::all_reduce", first, Reduction::sum);
  communicator.reduce_scatter<float>(stream, "test::reduce_scatter", first, second, Reduction::sum);
  launch(stream, "test::double", {write(second)}, Range{count}, Double{other.data()});
  communicator.all_to_all<float>(stream, "test::all_to_all", second, first);
  communicator.broadcast<float>(stream, "test::broadcast", first, 0);
  communicator.all_gather<float>(stream, "test::all_gather", first, second);
}

std::vector<float> times(std::vector<float> values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

}  // namespace

TEST_CASE(
    "NCCL's operations in a group of one run in order with kernels, eagerly and recorded on any branch") {
  const std::vector<float> numbers{1, -2, 3.5, 1e-3F, 7};
  Stream<Cuda> stream;
  Communicator<Cuda> communicator("data", nccl_transport("data", make_nccl_id(), 1, 0));
  CHECK(communicator.size() == 1);
  CHECK(communicator.description().starts_with("NCCL 2."));
  TestArray<Cuda, float> values(stream, numbers), other(stream, std::vector<float>(numbers.size(), -1));
  double_twice(stream, communicator, values, other);
  CHECK(values.get() == times(numbers, 4));
  CHECK(other.get() == times(numbers, 4));
  for (const Branch branch : {Branch::main, Branch::beside, Branch::update}) {
    values.set(numbers);
    RecordedGraph<Cuda> graph(stream, "collectives", [&] {
      const BranchScope<Cuda> scope(stream, branch);
      double_twice(stream, communicator, values, other);
    });
    CHECK(values.get() == numbers);
    for (int replay = 0; replay < 3; ++replay) graph.replay();
    CHECK(values.get() == times(numbers, 64));
    CHECK(other.get() == times(numbers, 64));
    CHECK(communicator.graphs() == std::vector<std::string>{"collectives"});
    CHECK_THROWS_AS(communicator.close(), CaptureError);
  }
  communicator.close();
  CHECK_THROWS_AS(communicator.broadcast<float>(stream, "test::broadcast",
                                                Vector<float, Cuda>(values.data(), values.size()), 0),
                  CaptureError);
}

TEST_CASE("NCCL splits a group of one, and the parts run recorded") {
  Stream<Cuda> stream;
  const auto world = nccl_transport("world", make_nccl_id(), 1, 0);
  CHECK(world->split("none", -1, 0) == nullptr);
  Communicator<Cuda> communicator("tensor", world->split("tensor", 3, 0));
  CHECK(communicator.size() == 1);
  const std::vector<float> numbers{1, -2, 3.5};
  TestArray<Cuda, float> values(stream, numbers), other(stream, numbers);
  RecordedGraph<Cuda> graph(stream, "collectives",
                            [&] { double_twice(stream, communicator, values, other); });
  graph.replay();
  CHECK(values.get() == times(numbers, 4));
}

TEST_CASE("NCCL sends a message to its own rank within one call, recorded too") {
  Stream<Cuda> stream;
  const auto world = nccl_transport("world", make_nccl_id(), 1, 0);
  TestArray<Cuda, float> sent(stream, {1, 2, 3}), received(stream, {0, 0, 0});
  const auto turn = [&] {
    launch_native(stream, "test::turn", {read(sent.data(), 3), write(received.data(), 3)}, [&] {
      world->send_receive(sent.data(), 3, 0, received.data(), 3, 0, DataType::float32,
                          stream.execution_space().cuda_stream());
    });
  };
  turn();
  CHECK(received.get() == std::vector<float>{1, 2, 3});
  sent.set({4, 5, 6});
  RecordedGraph<Cuda> graph(stream, "turn", turn);
  graph.replay();
  CHECK(received.get() == std::vector<float>{4, 5, 6});
}
