// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/order_check.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace encore;
using namespace encore::graph;

BufferId add(Outline& outline, const std::string& name, BufferKind kind = BufferKind::activation) {
  return outline.add_buffer({name, backend::DataType::uint8, {16}, kind});
}

void add_segment(Outline& outline, const std::string& name, std::vector<BufferId> reads,
                 std::vector<BufferId> writes) {
  outline.add_segment({name, Module::mlp, Phase::forward, -1, -1, std::move(reads), std::move(writes)});
}

Outline reordered(const Outline& outline, const std::vector<std::size_t>& order) {
  Outline other;
  for (const Buffer& buffer : outline.buffers()) other.add_buffer(buffer);
  for (const std::size_t index : order) other.add_segment(outline.segments()[index]);
  return other;
}

/// Forward and backward of two microbatches that add up one gradient, and its update.
Outline two_microbatches() {
  Outline outline;
  const auto a = add(outline, "0/saved"), b = add(outline, "1/saved");
  const auto all = add(outline, "gradients", BufferKind::gradient);
  const auto gradient = outline.add_buffer(
      {"weight.gradient", backend::DataType::uint8, {4}, BufferKind::gradient, BufferPart{all, 4}});
  const auto weight = add(outline, "weight", BufferKind::parameter);
  add_segment(outline, "0/forward", {weight}, {a});
  add_segment(outline, "0/backward", {a}, {gradient});
  add_segment(outline, "1/forward", {weight}, {b});
  add_segment(outline, "1/backward", {b}, {gradient});
  add_segment(outline, "update", {all}, {weight});
  return outline;
}

TEST_CASE("an order that only swaps what is independent is accepted") {
  const Outline outline = two_microbatches();
  CHECK_NOTHROW(check_order(outline, outline));
  CHECK_NOTHROW(check_order(outline, reordered(outline, {0, 2, 1, 3, 4})));
  CHECK_NOTHROW(check_order(outline, reordered(outline, {2, 0, 1, 3, 4})));
}

TEST_CASE("an order that breaks a dependence is refused with buffer and segments") {
  const Outline outline = two_microbatches();
  const auto refused = [&](const std::vector<std::size_t>& order, const char* sentence) {
    CHECK_THROWS_WITH_AS(check_order(outline, reordered(outline, order)), sentence, InternalError);
  };
  refused({1, 0, 2, 3, 4},
          "'0/backward' reads '0/saved' before '0/forward' writes it, in the planned order after");
  // Both only add, but the program was built so that the first overwrites.
  refused({0, 2, 3, 1, 4},
          "'1/backward' writes 'weight.gradient' before '0/backward' writes it, in the planned order after");
  // The update reads the whole of which the gradient is a part.
  refused({0, 1, 2, 4, 3},
          "'update' reads 'weight.gradient' before '1/backward' writes it, in the planned order after");
  refused({0, 1, 4, 2, 3},
          "'update' reads 'weight.gradient' before '1/backward' writes it, in the planned order "
          "after");
}

TEST_CASE("a program that lacks a segment or has another one is refused by its name") {
  const Outline outline = two_microbatches();
  CHECK_THROWS_WITH_AS(check_order(outline, reordered(outline, {0, 1, 2, 3})),
                       "segment 'update' of the planned program is missing", InternalError);
  Outline longer = outline;
  add_segment(longer, "another", {}, {});
  CHECK_THROWS_WITH_AS(check_order(outline, longer), "segment 'another' is not in the planned program",
                       InternalError);
}

TEST_CASE("random orders are accepted exactly when no two uses of which one writes are swapped") {
  std::mt19937 generator(13);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 500; ++round) {
    Outline outline;
    std::vector<BufferId> ids;
    for (int i = 0; i < 5; ++i) ids.push_back(add(outline, std::to_string(i), BufferKind::state));
    constexpr std::size_t segments = 7;
    for (std::size_t i = 0; i < segments; ++i) {
      std::vector<BufferId> reads{ids[generator() % ids.size()]}, writes;
      if (generator() % 2 == 0) writes.push_back(ids[generator() % ids.size()]);
      add_segment(outline, std::to_string(i), reads, writes);
    }
    std::vector<std::size_t> order{0, 1, 2, 3, 4, 5, 6};
    for (int swaps = 0; swaps < 2; ++swaps) {
      const std::size_t at = generator() % (segments - 1);
      std::swap(order[at], order[at + 1]);
    }
    const auto uses = [&](std::size_t segment, BufferId id, bool writing) {
      const Segment& s = outline.segments()[segment];
      return std::ranges::count(s.writes, id) > 0 || (!writing && std::ranges::count(s.reads, id) > 0);
    };
    bool valid = true;
    for (std::size_t i = 0; i < segments; ++i)
      for (std::size_t j = 0; j < i; ++j)
        for (const BufferId id : ids)
          if (order[j] > order[i] && ((uses(order[i], id, true) && uses(order[j], id, false)) ||
                                      (uses(order[i], id, false) && uses(order[j], id, true))))
            valid = false;
    CAPTURE(round);
    if (valid) {
      CHECK_NOTHROW(check_order(outline, reordered(outline, order)));
      ++accepted;
    } else {
      CHECK_THROWS_AS(check_order(outline, reordered(outline, order)), InternalError);
      ++refused;
    }
  }
  CHECK(accepted > 50);
  CHECK(refused > 50);
}

}  // namespace
