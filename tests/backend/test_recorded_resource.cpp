// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/recorded_graph.hpp>
#include <encore/backend/recorded_resource.hpp>

#include "spaces.hpp"

#include <atomic>
#include <chrono>
#include <thread>

using namespace encore;
using namespace encore::backend;
using encore::tests::TestArray;

namespace {

struct Double {
  double* data;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { data[i] *= 2; }
};

/// Stands for a communicator: "reduces" by doubling, through a native handle that its release ends.
class MockCommunicator {
 public:
  explicit MockCommunicator(std::string name, int* releases)
      : resource_(std::move(name), [releases] { ++*releases; }) {}

  template <class Space>
  void reduce(Stream<Space>& stream, const TestArray<Space, double>& array) const {
    resource_.use(stream);
    launch(stream, "test::reduce", {write(array.data(), array.size())},
           Range{static_cast<std::int64_t>(array.size())}, Double{array.data()});
  }
  RecordedResource& resource() { return resource_; }

 private:
  RecordedResource resource_;
};

/// What a call refuses to do, or an empty text; it has to answer at once.
template <class Call>
std::string refusal_of(const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  std::string sentence;
  try {
    call();
  } catch (const CaptureError& error) {
    sentence = error.what();
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  return sentence;
}

bool names(const std::string& sentence, const std::string& name) {
  return sentence.find("'" + name + "'") != std::string::npos;
}

}  // namespace

TEST_CASE_TEMPLATE(
    "case 29: closing a communicator that graphs recorded is refused at once, naming it and them", Space,
    ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  TestArray<Space, double> array(stream, {1.0, 2.0});
  int releases = 0;
  MockCommunicator world("world", &releases);
  auto train = std::make_unique<RecordedGraph<Space>>(stream, "train", [&] { world.reduce(stream, array); });
  auto evaluate =
      std::make_unique<RecordedGraph<Space>>(stream, "evaluate", [&] { world.reduce(stream, array); });
  const RecordedGraph<Space> other(stream, "other", [&] { stream.clear(array.data(), 8, "test::clear"); });
  CHECK(world.resource().graphs() == std::vector<std::string>{"train", "evaluate"});

  const std::string sentence = refusal_of([&] { world.resource().close(); });
  CHECK(names(sentence, "world"));
  CHECK(names(sentence, "train"));
  CHECK(names(sentence, "evaluate"));
  CHECK(!names(sentence, "other"));
  CHECK(releases == 0);

  train->replay();
  CHECK(array.get() == std::vector<double>{2.0, 4.0});  // Refusing changed nothing.
  train.reset();
  CHECK(!names(refusal_of([&] { world.resource().close(); }), "train"));
  evaluate.reset();
  world.resource().close();
  CHECK(releases == 1);
  world.resource().close();
  CHECK(releases == 1);
}

TEST_CASE_TEMPLATE("after closing, use and recording are refused by name and leave the stream usable", Space,
                   ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  TestArray<Space, double> array(stream, {1.0});
  int releases = 0;
  MockCommunicator world("world", &releases);
  world.reduce(stream, array);
  world.resource().close();
  CHECK(names(refusal_of([&] { world.reduce(stream, array); }), "world"));
  const std::string sentence = refusal_of(
      [&] { RecordedGraph<Space>(stream, "late evaluation", [&] { world.reduce(stream, array); }); });
  CHECK(names(sentence, "world"));
  CHECK(names(sentence, "late evaluation"));
  CHECK(stream.mode() == StreamMode::execute);
  launch(stream, "test::double", {write(array.data(), 1)}, Range{1}, Double{array.data()});
  CHECK(array.get() == std::vector<double>{4.0});
  CHECK(releases == 1);
}

TEST_CASE_TEMPLATE("an owner that is destroyed first leaves the handle to its graphs, which refuse to replay",
                   Space, ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  TestArray<Space, double> array(stream, {1.0});
  int releases = 0;
  auto world = std::make_unique<MockCommunicator>("world", &releases);
  auto first = std::make_unique<RecordedGraph<Space>>(stream, "first", [&] { world->reduce(stream, array); });
  auto second =
      std::make_unique<RecordedGraph<Space>>(stream, "second", [&] { world->reduce(stream, array); });
  world.reset();
  CHECK(releases == 0);
  const std::string sentence = refusal_of([&] { first->replay(); });
  CHECK(names(sentence, "world"));
  CHECK(names(sentence, "first"));
  CHECK(array.get() == std::vector<double>{1.0});
  first.reset();
  CHECK(releases == 0);
  second.reset();
  CHECK(releases == 1);
}

TEST_CASE_TEMPLATE("a normal end after training and two evaluations releases the handle once", Space,
                   ENCORE_TEST_SPACES) {
  int releases = 0;
  {
    Stream<Space> stream;
    TestArray<Space, double> array(stream, {1.0});
    MockCommunicator world("world", &releases);
    RecordedGraph<Space> train(stream, "train", [&] { world.reduce(stream, array); });
    train.replay();
    for (int i = 0; i < 2; ++i) {
      RecordedGraph<Space> evaluate(stream, "evaluate", [&] { world.reduce(stream, array); });
      evaluate.replay();
    }
    CHECK(array.get() == std::vector<double>{8.0});
    CHECK(world.resource().graphs() == std::vector<std::string>{"train"});
  }
  CHECK(releases == 1);
}

TEST_CASE_TEMPLATE("a recording that fails, and a graph that is replaced, no longer count", Space,
                   ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  TestArray<Space, double> array(stream, {1.0});
  int releases = 0;
  MockCommunicator world("world", &releases);
  CHECK(!refusal_of([&] {
           RecordedGraph<Space>(stream, "refused", [&] {
             world.reduce(stream, array);
             stream.synchronize("test");
           });
         }).empty());
  CHECK(world.resource().graphs().empty());
  RecordedGraph<Space> graph(stream, "old", [&] { world.reduce(stream, array); });
  graph = RecordedGraph<Space>(stream, "new", [&] {
    world.reduce(stream, array);
    world.reduce(stream, array);
  });
  CHECK(world.resource().graphs() == std::vector<std::string>{"new"});
  graph.replay();
  CHECK(array.get() == std::vector<double>{4.0});
  graph = RecordedGraph<Space>(stream, "without", [&] { stream.clear(array.data(), 8, "test::clear"); });
  world.resource().close();
  CHECK(releases == 1);
}

TEST_CASE("an end that fails is told by close() alone, and does not replace the exception on its way") {
  const auto fail = [] { throw DeviceError("NCCL says no"); };
  RecordedResource closed("world", fail);
  CHECK_THROWS_AS(closed.close(), DeviceError);
  { const RecordedResource forgotten("world", fail); }
  const auto work = [&] {
    const RecordedResource world("world", fail);
    throw OutOfMemoryError("no room for a sum");
  };
  CHECK_THROWS_WITH_AS(work(), "no room for a sum", OutOfMemoryError);
}

TEST_CASE("graphs of several threads may record one resource while it is being closed") {
  std::atomic<int> releases = 0, recorded = 0, refused = 0;
  RecordedResource world("world", [&] { ++releases; });
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        ResourceUses uses("graph");
        Stream<Kokkos::Serial> stream;
        stream.set_resource_uses(&uses);
        try {
          world.use(stream);
          CHECK(releases == 0);
          ++recorded;
        } catch (const CaptureError&) {
          ++refused;
        }
      }
    });
  while (releases == 0) {
    try {
      world.close();
    } catch (const CaptureError&) {}
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(releases == 1);
  CHECK(recorded + refused == 2000);
  CHECK(world.graphs().empty());
}
