// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/communicator.hpp>
#include <encore/backend/error.hpp>
#include <encore/backend/recorded_graph.hpp>
#include <encore/backend/thread_transport.hpp>

#include "ranks.hpp"
#include "spaces.hpp"

#include <chrono>
#include <numeric>

using namespace encore;
using namespace encore::backend;
using encore::tests::on_ranks;
using encore::tests::TestArray;
using Space = Kokkos::Serial;

namespace {

template <class T>
Vector<T, Space> view(const TestArray<Space, T>& array) {
  return Vector<T, Space>(array.data(), array.size());
}
template <class T>
Vector<const T, Space> const_view(const TestArray<Space, T>& array) {
  return Vector<const T, Space>(array.data(), array.size());
}

/// A value that tells rank and place, and that sums of bfloat16 hold exactly.
double value_of(int rank, std::size_t i) { return static_cast<double>((rank + 1) * (i % 5 + 1)); }

template <class T>
std::vector<T> values_of(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = T(value_of(rank, i));
  return values;
}

double sum_of(int ranks, std::size_t i) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += value_of(rank, i);
  return sum;
}

constexpr std::size_t counts[]{1, 3, 1000, 4097};

}  // namespace

TEST_CASE_TEMPLATE("every rank gets the sum and the maximum of all ranks", T, float, double, bfloat16,
                   std::int32_t, std::int64_t) {
  for (const int ranks : {1, 2, 3, 8}) {
    on_ranks(ranks, [&](std::shared_ptr<Transport> transport) {
      const int rank = transport->rank();
      Stream<Space> stream;
      Communicator<Space> communicator("data", std::move(transport));
      CHECK(communicator.size() == ranks);
      for (const std::size_t count : counts) {
        TestArray<Space, T> sums(stream, values_of<T>(rank, count)),
            maxima(stream, values_of<T>(rank, count));
        communicator.all_reduce<T>(stream, "test::sum", view(sums), Reduction::sum);
        communicator.all_reduce<T>(stream, "test::maximum", view(maxima), Reduction::maximum);
        bool good = true;
        for (std::size_t i = 0; i < count; ++i)
          good = good && double(sums.get()[i]) == sum_of(ranks, i) &&
                 double(maxima.get()[i]) == value_of(ranks - 1, i);
        CHECK(good);
        if (count > 1000) break;
      }
    });
  }
}

TEST_CASE("a scattered sum gathered again is the sum, also in place") {
  constexpr std::size_t count = 7;
  for (const int ranks : {1, 2, 5})
    on_ranks(ranks, [&](std::shared_ptr<Transport> transport) {
      const int rank = transport->rank();
      Stream<Space> stream;
      Communicator<Space> communicator("data", std::move(transport));
      TestArray<Space, float> values(stream, values_of<float>(rank, count * ranks)),
          part(stream, std::vector<float>(count)), whole(stream, std::vector<float>(count * ranks));
      communicator.reduce_scatter<float>(stream, "test::scatter", const_view(values), view(part),
                                         Reduction::sum);
      communicator.all_gather<float>(stream, "test::gather", const_view(part), view(whole));
      const Vector<float, Space> mine(values.data() + rank * count, count);
      communicator.reduce_scatter<float>(stream, "test::scatter", const_view(values), mine, Reduction::sum);
      communicator.all_gather<float>(stream, "test::gather", mine, view(values));
      for (std::size_t i = 0; i < count * ranks; ++i) {
        CHECK(whole.get()[i] == float(sum_of(ranks, i)));
        CHECK(values.get()[i] == float(sum_of(ranks, i)));
      }
    });
}

TEST_CASE("a broadcast brings the root's values, and all-to-all transposes ranks and rows") {
  constexpr std::size_t count = 3;
  constexpr int ranks = 4;
  on_ranks(ranks, [&](std::shared_ptr<Transport> transport) {
    const int rank = transport->rank();
    Stream<Space> stream;
    Communicator<Space> communicator("expert", std::move(transport));
    TestArray<Space, double> values(stream, values_of<double>(rank, count));
    communicator.broadcast<double>(stream, "test::broadcast", view(values), 2);
    CHECK(values.get() == values_of<double>(2, count));
    TestArray<Space, std::int32_t> rows(stream, std::vector<std::int32_t>(ranks * count)),
        received(stream, std::vector<std::int32_t>(ranks * count));
    std::vector<std::int32_t> sent(ranks * count);
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::int32_t>(100 * rank + i);
    rows.set(sent);
    communicator.all_to_all<std::int32_t>(stream, "test::all_to_all", const_view(rows), view(received));
    for (int from = 0; from < ranks; ++from)
      for (std::size_t i = 0; i < count; ++i)
        CHECK(received.get()[from * count + i] ==
              100 * from + static_cast<int>(rank * count) + static_cast<int>(i));
  });
}

TEST_CASE("sums have the same bits on every rank, eagerly and replayed") {
  constexpr std::size_t count = 1001;
  constexpr int ranks = 3;
  std::vector<std::vector<float>> eager(ranks), replayed(ranks);
  on_ranks(ranks, [&](std::shared_ptr<Transport> transport) {
    const int rank = transport->rank();
    Stream<Space> stream;
    Communicator<Space> communicator("data", std::move(transport));
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = 1.0F / static_cast<float>(3 * i + rank + 1);
    TestArray<Space, float> array(stream, values);
    communicator.all_reduce<float>(stream, "test::sum", view(array), Reduction::sum);
    eager[rank] = array.get();
    array.set(values);
    RecordedGraph<Space> graph(stream, "sum", [&] {
      communicator.all_reduce<float>(stream, "test::sum", view(array), Reduction::sum);
    });
    CHECK(array.get() == values);
    graph.replay();
    replayed[rank] = array.get();
  });
  for (int rank = 0; rank < ranks; ++rank) {
    CHECK(eager[rank] == eager[0]);
    CHECK(replayed[rank] == eager[0]);
  }
}

TEST_CASE("a rank that leaves is named to those that wait for it, and to all later operations") {
  const auto transports = thread_transports("data", 3, std::chrono::minutes(1));
  std::vector<std::string> sentences(2);
  std::vector<std::thread> waiting;
  for (const int rank : {0, 1})
    waiting.emplace_back([&, rank] {
      float value = 1;
      try {
        transports[rank]->all_reduce(&value, &value, 1, DataType::float32, Reduction::sum, nullptr);
      } catch (const CommunicationError& error) {
        sentences[rank] = error.what();
      }
    });
  transports[2]->close();
  for (std::thread& thread : waiting) thread.join();
  for (const std::string& sentence : sentences) CHECK(sentence == "rank 2 of 'data' has left the group");
  float value = 1;
  CHECK_THROWS_WITH_AS(
      transports[0]->all_reduce(&value, &value, 1, DataType::float32, Reduction::sum, nullptr),
      "rank 2 of 'data' has left the group", CommunicationError);
}

TEST_CASE("a rank that does not come is named within the stated time") {
  const auto transports = thread_transports("tensor", 2, std::chrono::milliseconds(50));
  const auto start = std::chrono::steady_clock::now();
  double value = 1;
  CHECK_THROWS_WITH_AS(transports[0]->broadcast(&value, 1, DataType::float64, 0, nullptr),
                       "rank 1 of 'tensor' did not come to broadcast of 1 elements of float64 within 50 ms",
                       CommunicationError);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("ranks that do different things are told so, each of them") {
  std::vector<std::string> sentences(2);
  on_ranks(2, [&](std::shared_ptr<Transport> transport) {
    std::vector<float> values(4);
    try {
      transport->all_reduce(values.data(), values.data(), transport->rank() == 0 ? 4 : 3, DataType::float32,
                            Reduction::sum, nullptr);
    } catch (const CommunicationError& error) {
      sentences[transport->rank()] = error.what();
    }
  });
  for (const std::string& sentence : sentences)
    CHECK(sentence ==
          "the ranks of 'rank threads' do not do the same: rank 0 calls all_reduce of 4 elements of float32, "
          "rank 1 all_reduce of 3 elements of float32");
}

TEST_CASE("a communicator that a graph has recorded cannot be closed, and the graph is named") {
  auto transports = thread_transports("data", 1);
  Stream<Space> stream;
  Communicator<Space> communicator("data", transports[0]);
  TestArray<Space, float> array(stream, {1, 2});
  {
    const RecordedGraph<Space> graph(stream, "step", [&] {
      communicator.all_reduce<float>(stream, "test::sum", view(array), Reduction::sum);
    });
    CHECK(communicator.graphs() == std::vector<std::string>{"step"});
    CHECK_THROWS_WITH_AS(communicator.close(),
                         "'data' cannot be closed while graphs that recorded it are alive ('step'): destroy "
                         "or reset them first",
                         CaptureError);
  }
  communicator.close();
  CHECK_THROWS_AS(communicator.all_reduce<float>(stream, "test::sum", view(array), Reduction::sum),
                  CaptureError);
}

TEST_CASE("a rank that fails inside an operation ends it for the others at once") {
  std::vector<std::string> sentences(2);
  on_ranks(2, [&](std::shared_ptr<Transport> transport) {
    std::uint8_t value = 1;  // which threads cannot add
    try {
      transport->all_reduce(&value, &value, 1, DataType::uint8, Reduction::sum, nullptr);
    } catch (const encore::Error& error) {
      sentences[transport->rank()] = error.what();
    }
  });
  for (const std::string& sentence : sentences) CHECK(sentence != "");
}

TEST_CASE("sizes that the ranks cannot share are named") {
  Stream<Space> stream;
  Communicator<Space> communicator("data", thread_transports("data", 2)[0]);
  TestArray<Space, float> five(stream, std::vector<float>(5)), two(stream, std::vector<float>(2));
  CHECK_THROWS_WITH_AS(communicator.reduce_scatter<float>(stream, "test::scatter", const_view(five),
                                                          view(two), Reduction::sum),
                       "test::scatter: the 2 ranks of 'data' have 2 elements each, which do not make 5",
                       InternalError);
}
