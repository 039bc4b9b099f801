// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/philox.hpp>
#include <encore/backend/random_tracker.hpp>
#include <encore/backend/recorded_graph.hpp>

#include "spaces.hpp"

using namespace encore;
using namespace encore::backend;
using encore::tests::TestArray;

namespace {

struct Draw {
  const RandomState* state;
  std::uint32_t segment;
  float* numbers;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    numbers[i] = random_uniform(*state, segment, static_cast<std::uint64_t>(i));
  }
};

std::vector<float> expected(RandomState state, std::uint32_t segment, std::size_t size) {
  std::vector<float> numbers;
  for (std::size_t i = 0; i < size; ++i) numbers.push_back(random_uniform(state, segment, i));
  return numbers;
}

}  // namespace

TEST_CASE("Philox4x32-10 gives the known answers of Random123") {
  struct Known {
    PhiloxCounter counter;
    PhiloxKey key;
    PhiloxCounter result;
  };
  const Known answers[] = {{{{0, 0, 0, 0}}, {{0, 0}}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
                           {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
                            {{0xffffffff, 0xffffffff}},
                            {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
                           {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
                            {{0xa4093822, 0x299f31d0}},
                            {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}}};
  for (const Known& known : answers) {
    const PhiloxCounter result = philox4x32_10(known.counter, known.key);
    for (int i = 0; i < 4; ++i) CHECK(result.word[i] == known.result.word[i]);
  }
}

TEST_CASE_TEMPLATE("draws are the same on every backend and differ by segment, offset and stream", Space,
                   ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  RandomTracker<Space> tracker(stream, 42);
  TestArray<Space, float> numbers(stream, std::vector<float>(1000, -1.0F));
  const auto draw = [&](const char* name, std::uint32_t segment) {
    launch(stream, "test::draw", {write(numbers.data(), 1000)}, Range{1000},
           Draw{tracker.state(name), segment, numbers.data()});
    return numbers.get();
  };
  CHECK(draw("default", 3) == expected({42, 0}, 3, 1000));
  CHECK(draw("default", 4) == expected({42, 0}, 4, 1000));
  CHECK(draw("model-parallel", 3) == expected({42 + 2718, 0}, 3, 1000));
  tracker.advance(stream);
  CHECK(draw("default", 3) == expected({42, 1}, 3, 1000));
  CHECK(expected({42, 0}, 3, 1000) != expected({42, 1}, 3, 1000));
  CHECK(expected({42, 0}, 3, 1000) != expected({42, 0}, 4, 1000));
  CHECK(expected({42, 0}, 3, 1000) != expected({43, 0}, 3, 1000));
}

TEST_CASE_TEMPLATE("every replay of a recorded draw gives new numbers, those of as many eager steps", Space,
                   ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  RandomTracker<Space> tracker(stream, 7);
  TestArray<Space, float> numbers(stream, std::vector<float>(100, -1.0F));
  RecordedGraph<Space> graph(stream, "draw", [&] {
    launch(stream, "test::draw", {read(tracker.state("default"), 1), write(numbers.data(), 100)}, Range{100},
           Draw{tracker.state("default"), 0, numbers.data()});
    tracker.advance(stream);
  });
  for (std::uint64_t replay = 0; replay < 5; ++replay) {
    graph.replay();
    CHECK(numbers.get() == expected({7, replay}, 0, 100));
  }
  CHECK(tracker.snapshot(stream)[0].offset == 5);
}

TEST_CASE_TEMPLATE("a snapshot restores every stream", Space, ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  RandomTracker<Space> tracker(stream, 7);
  tracker.add("noise", 99);
  tracker.advance(stream);
  const auto before = tracker.snapshot(stream);
  CHECK(before.size() == 4);
  CHECK(before[3].seed == 99);
  tracker.advance(stream);
  tracker.restore(stream, before);
  CHECK(tracker.snapshot(stream)[3].offset == 1);
  CHECK_THROWS_AS(tracker.restore(stream, {}), ConfigurationError);
}

TEST_CASE_TEMPLATE("unknown and repeated stream names are refused by name", Space, ENCORE_TEST_SPACES) {
  Stream<Space> stream;
  RandomTracker<Space> tracker(stream, 7);
  CHECK_THROWS_WITH_AS(
      tracker.state("defualt"),
      "no random stream is called 'defualt'; there are default, model-parallel, expert-parallel",
      ConfigurationError);
  CHECK_THROWS_AS(tracker.add("default", 1), ConfigurationError);
}

TEST_CASE("uniform numbers lie in [0, 1) with the right mean") {
  double sum = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const float value = random_uniform({1, 0}, 0, i);
    REQUIRE(value >= 0.0F);
    REQUIRE(value < 1.0F);
    sum += double(value);
  }
  CHECK(sum / 100000 == doctest::Approx(0.5).epsilon(0.01));
}
