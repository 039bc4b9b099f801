// SPDX-License-Identifier: Apache-2.0
// What a recorded graph tells about itself, refuses, and keeps alive.
#include "product_problem.hpp"

#include <encore/backend/device.hpp>
#include <encore/backend/error.hpp>
#include <encore/backend/event.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/recorded_graph.hpp>

#include "spaces.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

using namespace encore;
using namespace encore::backend;
using encore::tests::ProductCase;
using encore::tests::ProductProblem;
using encore::tests::same_bits;
using encore::tests::TestArray;

namespace {

struct AddOne {
  double* data;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { data[i] += 1; }
};

struct Fill {
  std::uint32_t* data;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { data[i] = 0x7fc00000U; }  // not a number
};

/// Every team adds its rows' sums to the first row.
struct AddRowSums {
  double* data;
  std::int64_t columns;
  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    double* row = data + team.league_rank() * columns;
    const double sum = team.template sum_over<double>(columns, [&](std::int64_t i) { return row[i]; });
    team.barrier();
    if (team.rank() == 0) row[0] += sum;
  }
};

template <class Space>
void add_one(Stream<Space>& stream, const TestArray<Space, double>& array,
             const char* label = "test::add_one") {
  launch(stream, label, {write(array.data(), array.size())}, Range{static_cast<std::int64_t>(array.size())},
         AddOne{array.data()});
}

template <class Space>
std::string refusal_of(Stream<Space>& stream, const std::function<void()>& body) {
  try {
    RecordedGraph<Space> graph(stream, "refused", body);
  } catch (const CaptureError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE_TEMPLATE("a graph knows the labels of its kernels in the order of recording", Space,
                   ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  TestArray<Space, double> array(stream, {1.0, 2.0});
  std::vector<std::string> collected;
  stream.collect_labels(&collected);
  RecordedGraph<Space> graph(stream, "labels", [&] {
    add_one(stream, array, "test::second");
    stream.clear(array.data(), 8, "test::clear");
    add_one(stream, array, "test::first");
  });
  const std::vector<std::string> labels{"test::second", "test::clear", "test::first"};
  CHECK(graph.labels() == labels);
  // Who was collecting before gets those of priming and of recording, and goes on.
  CHECK(collected.size() == 6);
  add_one(stream, array);
  CHECK(collected.size() == 7);
  const RecordedGraph<Space> moved = std::move(graph);
  CHECK(moved.labels() == labels);
  stream.collect_labels(nullptr);
}

TEST_CASE_TEMPLATE("a graph of more kernels takes more memory on hosts", Space, Kokkos::Serial,
                   Kokkos::OpenMP) {
  Stream<Space> stream;
  TestArray<Space, double> array(stream, {1.0, 2.0});
  const auto bytes_of = [&](int kernels) {
    return RecordedGraph<Space>(stream, "bytes",
                                [&] {
                                  for (int i = 0; i < kernels; ++i) add_one(stream, array);
                                })
        .device_bytes();
  };
  CHECK(bytes_of(1) >= sizeof(AddOne));
  CHECK(bytes_of(1000) >= bytes_of(10) + 990 * sizeof(AddOne));
}

TEST_CASE_TEMPLATE("the very first use of a device in a process may be a recording", Space,
                   ENCORE_TEST_SPACES) {
  Device<Space> device(1);
  Stream<Space>& stream = device.stream();
  constexpr std::int64_t size = 64;
  Allocation<Space> memory("test", 3 * size * size * sizeof(float)), numbers("test", size * sizeof(double));
  auto* matrices = reinterpret_cast<float*>(memory.data());
  auto* data = reinterpret_cast<double*>(numbers.data());
  const auto matrix = [&](int index) {
    return MatrixOperand<float>{matrices + index * size * size, size, size, size};
  };
  const auto constant = [&](int index) {
    return MatrixOperand<const float>{matrices + index * size * size, size, size, size};
  };
  RecordedGraph<Space> graph(stream, "first use", [&] {
    stream.clear(memory.data(), memory.bytes(), "test::clear");
    stream.clear(data, numbers.bytes(), "test::clear");
    launch(stream, "test::add_one", {write(data, size)}, Range{size}, AddOne{data});
    launch(stream, "test::add_row_sums", {write(data, size)}, Teams<128>{4, 0}, AddRowSums{data, size / 4});
    stream.copy(matrices, data, sizeof(double), "test::copy");
    device.blas().template multiply<float, float>(stream, "test::product", Transpose::no, constant(0),
                                                  Transpose::yes, constant(1), matrix(2));
    device.random().advance(stream);
  });
  graph.replay();
  std::vector<double> values(size);
  std::vector<float> product(size * size, NAN);
  stream.copy_to_host(values.data(), data, numbers.bytes(), "test");
  stream.copy_to_host(product.data(), matrix(2).data, product.size() * sizeof(float), "test");
  stream.synchronize("test");
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == (i % 16 == 0 ? 17.0 : 1.0));
  CHECK(product == std::vector<float>(size * size, 0.0F));
}

TEST_CASE_TEMPLATE(
    "marking and waiting for events in a recording is refused by name and leaves the stream usable", Space,
    ENCORE_TEST_SPACES) {
  Stream<Space> stream, other;
  TestArray<Space, double> array(stream, {1.0, 2.0});
  Event<Space> before("batch copied"), elsewhere("weights gathered");
  before.record(stream);
  elsewhere.record(other);
  const auto refused = [&](const std::function<void()>& operation) {
    return refusal_of(stream, [&] {
      add_one(stream, array);
      if (stream.mode() == StreamMode::record) operation();
    });
  };
  CHECK(contains(refused([&] { before.record(stream); }), "marking event 'batch copied'"));
  CHECK(contains(refused([&] { before.wait(stream); }), "waiting for event 'batch copied'"));
  CHECK(contains(refused([&] { elsewhere.wait(stream); }), "waiting for event 'weights gathered'"));
  CHECK(contains(refused([&] { elsewhere.hold_back(stream); }), "event 'weights gathered'"));
  CHECK(stream.mode() == StreamMode::execute);
  CHECK(array.get() == std::vector<double>{1.0, 2.0});
  elsewhere.hold_back(stream);
  RecordedGraph<Space> graph(stream, "works", [&] { add_one(stream, array); });
  graph.replay();
  add_one(stream, array);
  before.record(stream);
  before.wait(stream);
  CHECK(array.get() == std::vector<double>{3.0, 4.0});
}

TEST_CASE_TEMPLATE("a stream that an event holds back sees what the other stream wrote before the mark",
                   Space, ENCORE_TEST_SPACES) {
  Stream<Space> first, second;
  TestArray<Space, double> array(first, std::vector<double>(100000, 0.0)),
      copy(second, std::vector<double>(100000, -1.0));
  Event<Space> written("written"), copied("copied");
  for (int round = 1; round <= 20; ++round) {
    for (int i = 0; i < 10; ++i) add_one(first, array);
    written.record(first);
    written.hold_back(second);
    second.copy(copy.data(), array.data(), 800000, "test::copy");
    copied.record(second);
    copied.hold_back(first);
    add_one(first, array);
    CHECK(copy.get() == std::vector<double>(100000, 11.0 * round - 1));
  }
}

TEST_CASE_TEMPLATE("what was made for one stream may be recorded on another", Space, ENCORE_TEST_SPACES) {
  Device<Space> first(1), second(2);
  ProductProblem<float, float> problem({70, 200, 31});
  typename ProductProblem<float, float>::template OnDevice<Space> buffers(second.stream(), problem);
  problem.multiply(second.blas(), buffers);
  problem.download(buffers);
  const std::vector<float> expected = problem.result;
  second.stream().clear(buffers.result.data(), buffers.result.bytes(), "test::clear");
  // The first device's handle and workspace, in a recording of the second one's stream.
  RecordedGraph<Space> graph(second.stream(), "mixed", [&] { problem.multiply(first.blas(), buffers); });
  graph.replay();
  problem.download(buffers);
  CHECK(same_bits(problem.result, expected));
}

TEST_CASE_TEMPLATE("two devices of one process record and replay in turn", Space, ENCORE_TEST_SPACES) {
  Device<Space> first(1);
  auto second = std::make_unique<Device<Space>>(2);
  TestArray<Space, double> a(first.stream(), std::vector<double>(500, 0.0));
  RecordedGraph<Space> graph_a(first.stream(), "a", [&] {
    add_one(first.stream(), a);
    first.random().advance(first.stream());
  });
  {
    TestArray<Space, double> b(second->stream(), std::vector<double>(500, 0.0));
    RecordedGraph<Space> graph_b(second->stream(), "b", [&] {
      add_one(second->stream(), b);
      second->random().advance(second->stream());
    });
    for (int i = 0; i < 15; ++i) {
      graph_a.replay();
      if (i % 3 == 0) graph_b.replay();
    }
    CHECK(b.get() == std::vector<double>(500, 5.0));
  }
  second.reset();
  graph_a.replay();
  CHECK(a.get() == std::vector<double>(500, 16.0));
}

TEST_CASE_TEMPLATE(
    "destroying a graph, and the handle that recorded it, takes no workspace from another graph", Space,
    ENCORE_TEST_SPACES) {
  // Sums over k are split on CUDA, where their parts meet in the workspace.
  const ProductCase split{128, 384, is_host_space<Space> ? 500 : 8192, true, false};
  Stream<Space> stream;
  auto blas = std::make_unique<Blas<Space>>(stream);
  ProductProblem<float, float> problem(split);
  typename ProductProblem<float, float>::template OnDevice<Space> buffers(stream, problem);
  problem.multiply(*blas, buffers);
  problem.download(buffers);
  const std::vector<float> expected = problem.result;
  stream.clear(buffers.result.data(), buffers.result.bytes(), "test::clear");

  RecordedGraph<Space> train(stream, "train", [&] { problem.multiply(*blas, buffers); });
  auto evaluate =
      std::make_unique<RecordedGraph<Space>>(stream, "evaluate", [&] { problem.multiply(*blas, buffers); });
  evaluate->replay();
  stream.synchronize("test");
  evaluate.reset();
  blas.reset();

  std::vector<Allocation<Space>> overwritten;
  for (int i = 0; i < 8; ++i) {
    overwritten.emplace_back("test", std::size_t(is_host_space<Space> ? 2 : 32) << 20);
    auto* words = reinterpret_cast<std::uint32_t*>(overwritten.back().data());
    const auto count = static_cast<std::int64_t>(overwritten.back().bytes() / sizeof(std::uint32_t));
    launch(stream, "test::fill", {write(words, static_cast<std::size_t>(count))}, Range{count}, Fill{words});
  }
  train.replay();
  problem.download(buffers);
  CHECK(same_bits(problem.result, expected));
  for (const auto& memory : overwritten) {
    std::vector<std::uint32_t> words(memory.bytes() / sizeof(std::uint32_t));
    stream.copy_to_host(words.data(), memory.data(), memory.bytes(), "test");
    stream.synchronize("test");
    CHECK(std::all_of(words.begin(), words.end(), [](std::uint32_t word) { return word == 0x7fc00000U; }));
  }
}
