// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks, and groups made of a group.
#include <encore/backend/communicator.hpp>
#include <encore/backend/device.hpp>
#include <encore/backend/error.hpp>
#include <encore/backend/planned_transport.hpp>
#include <encore/backend/recorded_graph.hpp>
#include <encore/backend/thread_transport.hpp>

#include "ranks.hpp"
#include "spaces.hpp"

#include <chrono>

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
std::vector<T> values_of(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = T(double((rank + 1) * (i % 5 + 1)));
  return values;
}

/// The sentence of the CommunicationError that `call` throws.
template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const CommunicationError& error) {
    return error.what();
  }
  return "";
}

void sum(Transport& transport, float value = 1) {
  transport.all_reduce(&value, &value, 1, DataType::float32, Reduction::sum, nullptr);
}

}  // namespace

TEST_CASE_TEMPLATE("messages reach their rank in the order of the calls, eagerly and replayed", T, float,
                   double, bfloat16, std::int32_t, std::int64_t, std::uint8_t) {
  constexpr std::size_t count = 1001;
  on_ranks(3, [&](std::shared_ptr<Transport> transport) {
    const int rank = transport->rank();
    Stream<Space> stream;
    Communicator<Space> communicator("pipeline", std::move(transport));
    TestArray<Space, T> first(stream, values_of<T>(rank, count)), second(stream, values_of<T>(10, 3));
    // Rank 0 sends both to rank 1, which passes the first on to rank 2.
    const auto pass = [&] {
      if (rank == 0) {
        communicator.send<T>(stream, "test::send", view(first), 1);
        communicator.send<T>(stream, "test::send", view(second), 1);
      } else {
        communicator.receive<T>(stream, "test::receive", view(first), rank - 1);
        if (rank == 1) communicator.receive<T>(stream, "test::receive", view(second), 0);
        if (rank == 1) communicator.send<T>(stream, "test::send", view(first), 2);
      }
    };
    pass();
    CHECK(first.get() == values_of<T>(0, count));
    first.set(values_of<T>(rank + 3, count));
    second.set(values_of<T>(rank + 6, 3));
    RecordedGraph<Space> graph(stream, "messages", pass);
    CHECK(first.get() == values_of<T>(rank + 3, count));
    for (int replay = 0; replay < 3; ++replay) graph.replay();
    CHECK(first.get() == values_of<T>(3, count));
    CHECK(second.get() == values_of<T>(rank == 2 ? 8 : 6, 3));
    CHECK_THROWS_AS(communicator.close(), CaptureError);
  });
}

TEST_CASE("ranks that send to each other at the same time do not wait for each other") {
  constexpr int ranks = 4;
  constexpr std::size_t most = 3000;
  on_ranks(ranks, [&](std::shared_ptr<Transport> transport) {
    const int rank = transport->rank();
    const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
    const auto count_of = [](int r) { return most - static_cast<std::size_t>(r); };
    Stream<Space> stream;
    Communicator<Space> communicator("pipeline", std::move(transport));
    TestArray<Space, float> sent(stream, values_of<float>(rank, count_of(rank))),
        received(stream, std::vector<float>(count_of(last)));
    const auto turn = [&] {
      communicator.send_receive<float>(stream, "test::turn", view(sent), next, view(received), last);
    };
    turn();
    CHECK(received.get() == values_of<float>(last, count_of(last)));
    received.set(std::vector<float>(count_of(last)));
    RecordedGraph<Space> graph(stream, "turn", turn);
    graph.replay();
    CHECK(received.get() == values_of<float>(last, count_of(last)));
  });
}

TEST_CASE("messages of different sizes or types are told to both ranks, with both") {
  std::vector<std::string> sentences(2);
  const auto exchange = [&](DataType sent, std::size_t sent_count) {
    on_ranks(2, [&](std::shared_ptr<Transport> transport) {
      std::vector<double> values(4);
      sentences[transport->rank()] = refusal_of([&] {
        if (transport->rank() == 0) transport->send(values.data(), sent_count, sent, 1, nullptr);
        if (transport->rank() == 1) transport->receive(values.data(), 4, DataType::float32, 0, nullptr);
      });
    });
  };
  exchange(DataType::float32, 3);
  for (const std::string& sentence : sentences)
    CHECK(sentence ==
          "the ranks of 'rank threads' do not do the same: rank 0 sends 3 elements of float32, rank 1 "
          "receives 4 "
          "elements of float32");
  exchange(DataType::float64, 4);
  for (const std::string& sentence : sentences)
    CHECK(sentence ==
          "the ranks of 'rank threads' do not do the same: rank 0 sends 4 elements of float64, rank 1 "
          "receives 4 "
          "elements of float32");
}

TEST_CASE("a rank that does not come for a message is named within the stated time") {
  float value = 1;
  const auto after = [&](const auto& call) {
    const auto transports = thread_transports("pipeline", 2, std::chrono::milliseconds(50));
    return refusal_of([&] { call(*transports[0]); });
  };
  CHECK(after([&](Transport& end) { end.send(&value, 1, DataType::float32, 1, nullptr); }) ==
        "rank 1 of 'pipeline' did not come to receive 1 elements of float32 from rank 0 within 50 ms");
  CHECK(after([&](Transport& end) { end.receive(&value, 1, DataType::float32, 1, nullptr); }) ==
        "rank 1 of 'pipeline' did not come to send 1 elements of float32 to rank 0 within 50 ms");
  CHECK(after([&](Transport& end) {
          float other = 2;
          end.send_receive(&value, 1, 1, &other, 1, 1, DataType::float32, nullptr);
        }) == "rank 1 of 'pipeline' did not come to send 1 elements of float32 to rank 0 within 50 ms");
}

TEST_CASE("a rank exchanges no message with itself, nor with one that is not there") {
  Stream<Space> stream;
  Communicator<Space> communicator("pipeline", thread_transports("pipeline", 2)[0]);
  TestArray<Space, float> array(stream, {1, 2});
  CHECK_THROWS_WITH_AS(communicator.send<float>(stream, "test::send", view(array), 0),
                       "test::send: rank 0 of 'pipeline' exchanges a message with itself; copy instead",
                       InternalError);
  CHECK_THROWS_WITH_AS(communicator.receive<float>(stream, "test::receive", view(array), 2),
                       "test::receive: rank 2 is none of the 2 ranks of 'pipeline'", InternalError);
}

TEST_CASE("a split makes a group of each color, in the order of the keys") {
  on_ranks(6, [&](std::shared_ptr<Transport> world) {
    const int rank = world->rank();
    // Twice, so that the second split must not find groups of the first.
    for (int round = 0; round < 2; ++round) {
      const auto parity = world->split("parity", rank % 2, -rank);
      CHECK(parity->size() == 3);
      CHECK(parity->rank() == 2 - rank / 2);
      float total = static_cast<float>(rank + round);
      parity->all_reduce(&total, &total, 1, DataType::float32, Reduction::sum, nullptr);
      CHECK(total == static_cast<float>((rank % 2 == 0 ? 6 : 9) + 3 * round));
      std::vector<std::int32_t> order(3);
      parity->all_gather(&rank, order.data(), 1, DataType::int32, nullptr);
      CHECK(order == std::vector<std::int32_t>{4 + rank % 2, 2 + rank % 2, rank % 2});
    }
    const auto few = world->split("few", rank < 2 ? 0 : -1, 0);
    CHECK((few != nullptr) == (rank < 2));
    const auto pair = world->split("pair", rank / 2, 0);
    CHECK(pair->rank() == rank % 2);
    const auto single = pair->split("single", pair->rank(), 0);
    CHECK(single->size() == 1);
    sum(*single);
    sum(*world);
  });
}

TEST_CASE("groups of one device run in one order, recorded on different branches too") {
  constexpr int ranks = 4;
  on_ranks(ranks, [&](std::shared_ptr<Transport> world) {
    const int rank = world->rank();
    Device<Space> device(1);
    device.join("tensor", world->split("tensor", rank / 2, rank));
    device.join("data", world->split("data", rank % 2, rank));
    TestArray<Space, float> first(device.stream(), {float(rank)}), second(device.stream(), {float(rank)});
    RecordedGraph<Space> graph(device.stream(), "branches", [&] {
      for (int i = 0; i < 4; ++i) {
        const BranchScope<Space> scope(device.stream(), Branch::beside);
        device.communicator("tensor").all_reduce<float>(device.stream(), "test::tensor", view(first),
                                                        Reduction::sum);
        const BranchScope<Space> other(device.stream(), Branch::update);
        device.communicator("data").all_reduce<float>(device.stream(), "test::data", view(second),
                                                      Reduction::sum);
      }
    });
    graph.replay();
    CHECK(first.get()[0] == float(rank / 2 * 4 + 1) * 8);
    CHECK(second.get()[0] == float(rank % 2 * 2 + 2) * 8);
  });
}

TEST_CASE("the first failure ends every group of the job, and all name its rank") {
  // 0 and 1 are one group, 1 and 2 another, 2 and 3 a third. Rank 0 leaves; 3 waits for 2, 2 for 1, 1 for 0.
  auto world = thread_transports("world", 4, std::chrono::minutes(1));
  std::vector<std::string> sentences(4);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.emplace_back([&, rank] {
      Transport& mine = *world[static_cast<std::size_t>(rank)];
      const auto low = mine.split("low", rank < 2 ? 0 : -1, 0);
      const auto middle = mine.split("middle", rank == 1 || rank == 2 ? 0 : -1, 0);
      const auto high = mine.split("high", rank > 1 ? 0 : -1, 0);
      if (rank == 0) {
        mine.close();
        return;
      }
      sentences[static_cast<std::size_t>(rank)] = refusal_of([&] {
        float value = 1;
        if (rank == 1) sum(*low);
        if (rank == 2) middle->receive(&value, 1, DataType::float32, 0, nullptr);
        if (rank == 3) high->send(&value, 1, DataType::float32, 0, nullptr);
      });
    });
  for (std::thread& rank : ranks) rank.join();
  for (const int rank : {1, 2, 3})
    CHECK(sentences[static_cast<std::size_t>(rank)] ==
          "rank 0 of 'low' (rank 0 of 'world') has left the group");
  CHECK(refusal_of([&] { sum(*world[3]); }) == "rank 0 of 'low' (rank 0 of 'world') has left the group");
}

TEST_CASE("a rank that is done and leaves does not end groups that it is not in") {
  auto world = thread_transports("world", 3, std::chrono::minutes(1));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank, mine = std::move(world[static_cast<std::size_t>(rank)])]() mutable {
      const auto pair = mine->split("pair", rank == 0 ? 0 : 1, 0);
      if (rank == 0) return mine.reset();
      for (int i = 0; i < 1000; ++i) sum(*pair);
    });
  for (std::thread& rank : ranks) rank.join();
}

TEST_CASE("who waits for the message of a rank that leaves is told") {
  for (const bool sends : {false, true}) {
    const auto ends = thread_transports("pipeline", 3, std::chrono::minutes(1));
    std::string sentence;
    std::thread waiting([&] {
      float value = 1;
      sentence = refusal_of([&] {
        if (sends) ends[0]->send(&value, 1, DataType::float32, 2, nullptr);
        if (!sends) ends[0]->receive(&value, 1, DataType::float32, 2, nullptr);
      });
    });
    ends[2]->close();
    waiting.join();
    CHECK(sentence == "rank 2 of 'pipeline' has left the group");
  }
}

TEST_CASE("a planned group knows its ranks and runs nothing") {
  const auto transport = planned_transport(8, 3);
  CHECK(transport->size() == 8);
  CHECK(transport->rank() == 3);
  CHECK_THROWS_AS(transport->split("data", 0, 0), InternalError);
  CHECK_THROWS_AS(transport->send(nullptr, 1, DataType::float32, 1, nullptr), InternalError);
}
