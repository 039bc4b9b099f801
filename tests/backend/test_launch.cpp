// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/recorded_graph.hpp>

#include "spaces.hpp"

#include <numeric>

using namespace encore;
using namespace encore::backend;
using encore::tests::TestArray;

namespace {

struct AddOne {
  double* data;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { data[i] += 1; }
};

/// Each team sums a row of `columns` numbers through its scratch memory.
struct SumRows {
  const double* input;
  double* sums;
  std::int64_t columns;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    auto* copy = team.template scratch<double>();
    const double* row = input + team.league_rank() * columns;
    team.for_each(columns, [&](std::int64_t i) { copy[i] = row[i]; });
    team.barrier();
    const double sum = team.template sum_over<double>(columns, [&](std::int64_t i) { return copy[i]; });
    if (team.rank() == 0) sums[team.league_rank()] = sum;
  }
};

struct LargestOfRows {
  const double* input;
  double* largest;
  std::int64_t columns;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const double* row = input + team.league_rank() * columns;
    const double value =
        team.template max_over<double>(columns, -1e300, [&](std::int64_t i) { return row[i]; });
    if (team.rank() == 0) largest[team.league_rank()] = value;
  }
};

template <class Space>
void add_one(Stream<Space>& stream, const TestArray<Space, double>& array) {
  launch(stream, "test::add_one", {write(array.data(), array.size())},
         Range{static_cast<std::int64_t>(array.size())}, AddOne{array.data()});
}

}  // namespace

TEST_CASE_TEMPLATE("a range kernel reaches every index once", Space, ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  for (const std::size_t size : {1, 2, 255, 256, 257, 100003}) {
    TestArray<Space, double> array(stream, std::vector<double>(size, 0.5));
    add_one(stream, array);
    CHECK(array.get() == std::vector<double>(size, 1.5));
  }
}

TEST_CASE_TEMPLATE("an empty range or league launches nothing", Space, ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  const auto before = stream.counters().launches;
  launch(stream, "test::nothing", {}, Range{0}, AddOne{nullptr});
  launch(stream, "test::nothing", {}, Teams<64>{0, 0}, SumRows{nullptr, nullptr, 0});
  CHECK(stream.counters().launches == before);
}

TEST_CASE_TEMPLATE("teams sum and take maxima over rows of any length", Space, ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  for (const std::int64_t columns : {1, 31, 32, 33, 127, 128, 129, 1000}) {
    const std::int64_t rows = 37;
    std::vector<double> values(static_cast<std::size_t>(rows * columns));
    std::iota(values.begin(), values.end(), -100.0);
    TestArray<Space, double> input(stream, values);
    TestArray<Space, double> sums(stream, std::vector<double>(rows, NAN)),
        largest(stream, std::vector<double>(rows, NAN));
    launch(stream, "test::sum_rows", {read(input.data(), input.size()), write(sums.data(), sums.size())},
           Teams<128>{rows, columns * sizeof(double)}, SumRows{input.data(), sums.data(), columns});
    launch(stream, "test::largest", {read(input.data(), input.size()), write(largest.data(), largest.size())},
           Teams<1024>{rows, 0}, LargestOfRows{input.data(), largest.data(), columns});
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto begin = values.begin() + row * columns;
      CHECK(sums.get()[row] == std::accumulate(begin, begin + columns, 0.0));
      CHECK(largest.get()[row] == *std::max_element(begin, begin + columns));
    }
  }
}

TEST_CASE_TEMPLATE("teams may use more scratch memory than 48 KiB", Space, ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  const std::int64_t columns = 12000;  // 94 KiB
  TestArray<Space, double> input(stream, std::vector<double>(columns, 2.0));
  TestArray<Space, double> sums(stream, {NAN});
  launch(stream, "test::sum_rows", {}, Teams<256>{1, columns * sizeof(double)},
         SumRows{input.data(), sums.data(), columns});
  CHECK(sums.get()[0] == 24000.0);
}

TEST_CASE_TEMPLATE("recording a kernel does not run it, and each replay runs it once", Space,
                   ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  TestArray<Space, double> array(stream, std::vector<double>(1000, 0.0));
  RecordedGraph<Space> graph(stream, "two kernels", [&] {
    add_one(stream, array);
    add_one(stream, array);
  });
  CHECK(graph.nodes() == 2);
  CHECK(array.get() == std::vector<double>(1000, 0.0));
  for (int replay = 1; replay <= 5; ++replay) {
    graph.replay();
    CHECK(array.get() == std::vector<double>(1000, 2.0 * replay));
  }
}

TEST_CASE_TEMPLATE("a recording may be the very first use of a stream", Space, ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  Allocation<Space> memory("test", 80);
  auto* data = reinterpret_cast<double*>(memory.data());
  RecordedGraph<Space> graph(stream, "first use", [&] {
    stream.clear(data, 80, "test::clear");
    launch(stream, "test::add_one", {write(data, 10)}, Range{10}, AddOne{data});
  });
  graph.replay();
  std::vector<double> values(10);
  stream.copy_to_host(values.data(), data, 80, "test");
  stream.synchronize("test");
  CHECK(values == std::vector<double>(10, 1.0));
}

TEST_CASE_TEMPLATE(
    "host copies and synchronization in a recording are refused by name and leave the stream usable", Space,
    ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  TestArray<Space, double> array(stream, {1.0, 2.0});
  double host = 0;
  const auto refusal_of = [&](auto&& operation) -> std::string {
    try {
      RecordedGraph<Space> graph(stream, "refused", [&] {
        add_one(stream, array);
        operation();
      });
    } catch (const CaptureError& error) {
      return error.what();
    }
    return "";
  };
  const std::string copied =
      refusal_of([&] { stream.copy_to_host(&host, array.data(), 8, "loss read-back"); });
  CHECK(copied.find("host copy") != std::string::npos);
  CHECK(copied.find("loss read-back") != std::string::npos);
  CHECK(refusal_of([&] { stream.copy_to_device(array.data(), &host, 8, "threshold"); }).find("threshold") !=
        std::string::npos);
  CHECK(refusal_of([&] { stream.synchronize("waiting for the norm"); }).find("waiting for the norm") !=
        std::string::npos);
  CHECK(stream.mode() == StreamMode::execute);
  CHECK(array.get() == std::vector<double>{1.0, 2.0});
  add_one(stream, array);
  CHECK(array.get() == std::vector<double>{2.0, 3.0});
}

TEST_CASE_TEMPLATE("an exception of the body ends a recording cleanly", Space, ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  TestArray<Space, double> array(stream, {0.0});
  CHECK_THROWS_AS(RecordedGraph<Space>(stream, "throws",
                                       [&] {
                                         add_one(stream, array);
                                         if (stream.mode() == StreamMode::record)
                                           throw std::logic_error("body");
                                       }),
                  std::logic_error);
  RecordedGraph<Space> graph(stream, "works", [&] { add_one(stream, array); });
  graph.replay();
  CHECK(array.get()[0] == 1.0);
}

TEST_CASE_TEMPLATE("two graphs of two streams do not disturb each other", Space, ENCORE_TEST_SPACES) {
  Stream<Space> first, second;
  TestArray<Space, double> a(first, std::vector<double>(64, 0.0)), b(second, std::vector<double>(64, 0.0));
  RecordedGraph<Space> graph_a(first, "a", [&] { add_one(first, a); });
  auto graph_b = std::make_unique<RecordedGraph<Space>>(second, "b", [&] { add_one(second, b); });
  graph_a.replay();
  graph_b->replay();
  second.synchronize("test");
  graph_b.reset();
  graph_a.replay();
  CHECK(a.get() == std::vector<double>(64, 2.0));
  CHECK(b.get() == std::vector<double>(64, 1.0));
}

TEST_CASE_TEMPLATE("copies inside the space are recorded", Space, ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  TestArray<Space, double> from(stream, {1.0, 2.0, 3.0}), to(stream, {0.0, 0.0, 0.0});
  RecordedGraph<Space> graph(stream, "copy", [&] { stream.copy(to.data(), from.data(), 24, "test::copy"); });
  CHECK(to.get() == std::vector<double>{0, 0, 0});
  from.set({7.0, 8.0, 9.0});
  graph.replay();
  CHECK(to.get() == std::vector<double>{7, 8, 9});
}

TEST_CASE_TEMPLATE("a replay neither synchronises nor copies from or to the host", Space,
                   ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  TestArray<Space, double> array(stream, std::vector<double>(8, 0.0));
  RecordedGraph<Space> graph(stream, "quiet", [&] { add_one(stream, array); });
  const StreamCounters before = stream.counters();
  graph.replay();
  const StreamCounters after = stream.counters();
  CHECK(after.replays == before.replays + 1);
  CHECK(after.synchronizations == before.synchronizations);
  CHECK(after.host_copies == before.host_copies);
}
