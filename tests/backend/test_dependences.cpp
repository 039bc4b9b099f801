// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/dependences.hpp>
#include <encore/backend/lane_plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace encore::backend;

using Closure = std::vector<std::vector<bool>>;

const std::byte* address(std::size_t offset) {
  static const std::byte memory[64]{};
  return memory + offset;
}

Access touch(std::size_t begin, std::size_t end, bool writes) {
  return {address(begin), address(end), writes};
}

struct RandomProgram {
  explicit RandomProgram(unsigned seed) {
    std::mt19937 generator(seed);
    const auto below = [&](unsigned limit) { return generator() % limit; };
    for (unsigned operation = 0; operation < 60; ++operation) {
      std::vector<Access> accesses;
      if (below(25) != 0)
        for (unsigned count = 1 + below(4); count > 0; --count) {
          const unsigned begin = below(64);
          accesses.push_back(touch(begin, begin + below(std::min(12U, 65 - begin)), below(3) == 0));
        }
      dependences.add(accesses);
      program.push_back(std::move(accesses));
      costs.push_back({1 + static_cast<std::int64_t>(below(4)), static_cast<double>(1 << below(16))});
    }
    dependences.finish();
  }

  /// Whether two operations must keep their order, by looking at every pair of accesses.
  bool conflicts(std::size_t first, std::size_t second) const {
    const auto& earlier = program[first];
    const auto& later = program[second];
    if (earlier.empty() || later.empty()) return true;
    return std::any_of(earlier.begin(), earlier.end(), [&](const Access& a) {
      return std::any_of(later.begin(), later.end(), [&](const Access& b) {
        return a.begin < a.end && b.begin < b.end && conflict(a, b);
      });
    });
  }

  std::vector<std::vector<Access>> program;
  Dependences dependences;
  std::vector<OperationCost> costs;
};

/// before[b][a]: a is over before b begins, if `direct(a, b)` says so or through operations between them.
template <class Direct>
Closure closure(std::size_t size, const Direct& direct) {
  Closure before(size, std::vector<bool>(size, false));
  for (std::size_t later = 0; later < size; ++later)
    for (std::size_t earlier = 0; earlier < later; ++earlier)
      if (direct(earlier, later)) {
        before[later][earlier] = true;
        for (std::size_t i = 0; i < earlier; ++i)
          if (before[earlier][i]) before[later][i] = true;
      }
  return before;
}

/// What a lane knows to be over when it begins an operation: what it ran itself, what it has waited for so far,
/// and what came before those.
Closure order_of(const LanePlan& plan, int lanes) {
  const std::size_t size = plan.lanes.size();
  Closure before(size, std::vector<bool>(size, true));
  for (int lane = 0; lane < lanes; ++lane) {
    std::vector<bool> known(size, false);
    for (std::size_t operation = 0; operation < size; ++operation) {
      const bool shared = plan.lanes[operation] == LanePlan::shared;
      if (!shared && plan.lanes[operation] != lane) continue;
      for (const std::uint32_t earlier : plan.waits_of(operation)) {
        known[earlier] = true;
        for (std::size_t i = 0; i < size; ++i) known[i] = known[i] || before[earlier][i];
      }
      for (std::size_t i = 0; i < size; ++i) before[operation][i] = before[operation][i] && known[i];
      if (!shared) known[operation] = true;
    }
  }
  return before;
}

void append_chain(Dependences& dependences, std::size_t place, int length) {
  for (int i = 0; i < length; ++i) dependences.add(std::vector{touch(place, place + 1, true)});
}

std::vector<OperationCost> equal_costs(const Dependences& dependences, double nanoseconds,
                                       std::int64_t size = 64) {
  return std::vector<OperationCost>(dependences.size(), OperationCost{size, nanoseconds});
}

constexpr double never = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("operations keep their order where they conflict, and nowhere else") {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const RandomProgram random(seed);
    const std::size_t size = random.program.size();
    const Closure found = closure(size, [&](std::size_t earlier, std::size_t later) {
      const auto predecessors = random.dependences.predecessors(later);
      return std::binary_search(predecessors.begin(), predecessors.end(), earlier);
    });
    const Closure expected = closure(
        size, [&](std::size_t earlier, std::size_t later) { return random.conflicts(earlier, later); });
    CHECK(found == expected);
    std::vector<std::size_t> level(size, 1);
    for (std::size_t later = 0; later < size; ++later)
      for (std::size_t earlier = 0; earlier < later; ++earlier)
        if (random.conflicts(earlier, later)) level[later] = std::max(level[later], level[earlier] + 1);
    CHECK(random.dependences.levels() == *std::max_element(level.begin(), level.end()));
  }
}

TEST_CASE("what follows from another dependence is left out") {
  Dependences dependences;
  append_chain(dependences, 0, 3);
  for (int i = 0; i < 100; ++i) dependences.add(std::vector{touch(0, 1, false), touch(1, 2, true)});
  CHECK(dependences.predecessors(2).size() == 1);
  CHECK(dependences.predecessors(102).size() == 1);
  CHECK(dependences.levels() == 103);
}

TEST_CASE("every plan keeps the order of operations that conflict") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    const RandomProgram random(seed);
    for (int lanes = 1; lanes <= 4; ++lanes)
      for (const double share_from : {0.0, 1e3, 1e4, never}) {
        const LanePlan plan = plan_lanes(random.dependences, random.costs, lanes, share_from);
        const Closure order = order_of(plan, lanes);
        bool kept = true;
        for (std::size_t later = 0; later < random.program.size(); ++later)
          for (std::size_t earlier = 0; earlier < later; ++earlier)
            if (random.conflicts(earlier, later)) kept = kept && order[later][earlier];
        CHECK(kept);
        for (std::size_t later = 0; later < random.program.size(); ++later)
          for (const std::uint32_t earlier : plan.waits_of(later)) {
            CHECK(random.conflicts(earlier, later));
            CHECK(plan.announced[earlier]);
          }
      }
  }
}

TEST_CASE("a chain of small operations stays on one lane and waits for nothing") {
  Dependences dependences;
  append_chain(dependences, 0, 200);
  const LanePlan plan = plan_lanes(dependences, equal_costs(dependences, 100), 4, 1e3);
  CHECK(plan.lanes == std::vector<std::int32_t>(200, plan.lanes.front()));
  CHECK(plan.waits.empty());
}

TEST_CASE("independent chains spread over the lanes without waiting, in whatever order they were recorded") {
  for (const bool one_after_another : {true, false}) {
    Dependences dependences;
    for (int i = 0; i < 200; ++i) {
      const auto chain = static_cast<std::size_t>(one_after_another ? i / 25 : i % 8);
      append_chain(dependences, chain, 1);
    }
    for (const int lanes : {2, 4, 8}) {
      const LanePlan plan = plan_lanes(dependences, equal_costs(dependences, 100), lanes, 1e3);
      CHECK(plan.waits.empty());
      for (int lane = 0; lane < lanes; ++lane)
        CHECK(std::count(plan.lanes.begin(), plan.lanes.end(), lane) == 200 / lanes);
      CHECK(plan.nanoseconds == doctest::Approx(200 * 100.0 / lanes));
    }
  }
}

TEST_CASE("shared operations wait once for each dependence level") {
  Dependences dependences;
  for (int level = 0; level < 10; ++level)
    for (std::size_t place = 0; place < 4; ++place)  // Each reads what all of the level before wrote.
      dependences.add(std::vector{touch(level % 2 * 8, level % 2 * 8 + 4, false),
                                  touch(8 - level % 2 * 8 + place, 9 - level % 2 * 8 + place, true)});
  const LanePlan plan = plan_lanes(dependences, equal_costs(dependences, 1e6), 2, 0);
  CHECK(dependences.levels() == 10);
  CHECK(std::count(plan.lanes.begin(), plan.lanes.end(), LanePlan::shared) == 40);
  // The first of a level waits for the four of the level before; the others find that done.
  for (std::size_t operation = 0; operation < 40; ++operation)
    CHECK(plan.waits_of(operation).size() == (operation >= 4 && operation % 4 == 0 ? 4 : 0));
}

TEST_CASE("an operation of one item is never shared") {
  Dependences dependences;
  append_chain(dependences, 0, 3);
  const LanePlan plan = plan_lanes(dependences, equal_costs(dependences, 1e9, 1), 4, 0);
  CHECK(std::count(plan.lanes.begin(), plan.lanes.end(), LanePlan::shared) == 0);
}
