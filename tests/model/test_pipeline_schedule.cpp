// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/pipeline_schedule.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

namespace {

using namespace encore;
using namespace encore::model;

/// `F0.1 B0.1`: forward and backward of microbatch 0 through chunk 1.
std::string shown(const std::vector<PipelinePass>& order) {
  std::string text;
  for (const PipelinePass& pass : order)
    text += (text.empty() ? "" : " ") + std::string(pass.kind == PassKind::forward ? "F" : "B") +
            std::to_string(pass.microbatch) + "." + std::to_string(pass.chunk);
  return text;
}

std::vector<PipelineShape> many_shapes() {
  std::vector<PipelineShape> shapes;
  for (const std::int64_t stages : {1, 2, 3, 4, 5, 8})
    for (const std::int64_t chunks : {1, 2, 3, 4})
      for (std::int64_t microbatches = 1; microbatches <= 24; ++microbatches)
        if (chunks == 1 || (stages > 1 && microbatches % stages == 0))
          shapes.push_back({stages, chunks, microbatches});
  return shapes;
}

TEST_CASE("one stage runs forward and backward of each microbatch in turn") {
  CHECK(shown(merged_order({1, 1, 3})) == "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0");
}

TEST_CASE("1F1B warms up with as many forwards as there are stages behind, then goes by turns") {
  CHECK(shown(stage_order({4, 1, 6}, 0)) == "F0.0 F1.0 F2.0 F3.0 B0.0 F4.0 B1.0 F5.0 B2.0 B3.0 B4.0 B5.0");
  CHECK(shown(stage_order({4, 1, 6}, 2)) == "F0.2 F1.2 B0.2 F2.2 B1.2 F3.2 B2.2 F4.2 B3.2 F5.2 B4.2 B5.2");
  CHECK(shown(stage_order({4, 1, 6}, 3)) == "F0.3 B0.3 F1.3 B1.3 F2.3 B2.3 F3.3 B3.3 F4.3 B4.3 F5.3 B5.3");
  CHECK(shown(stage_order({4, 1, 2}, 0)) == "F0.0 F1.0 B0.0 B1.0");
}

TEST_CASE("interleaved 1F1B changes its chunk after as many microbatches as there are stages") {
  // Warm-up 2 * 1 + 2 on the first stage, 2 on the second.
  CHECK(shown(stage_order({2, 2, 4}, 0)) ==
        "F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 B3.0");
  CHECK(shown(stage_order({2, 2, 4}, 1)) ==
        "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 B2.1 B3.1");
}

TEST_CASE("two stages in one process run in the order of their times") {
  // A forward lasts 1, a backward 2; at equal times the first stage goes first.
  CHECK(shown(merged_order({2, 1, 3})) == "F0.0 F1.0 F0.1 B0.1 B0.0 F1.1 B1.1 F2.0 B1.0 F2.1 B2.1 B2.0");
}

TEST_CASE("every order has every pass once, keeps the dependences and the order of each stage") {
  for (const PipelineShape& shape : many_shapes()) {
    CAPTURE(shape.stages);
    CAPTURE(shape.virtual_stages);
    CAPTURE(shape.microbatches);
    const std::vector<PipelinePass> order = merged_order(shape);
    REQUIRE(order.size() == static_cast<std::size_t>(2 * shape.microbatches * shape.chunks()));
    REQUIRE_NOTHROW(check_order(shape, order));
    for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
      std::vector<PipelinePass> of_stage;
      std::ranges::copy_if(order, std::back_inserter(of_stage),
                           [&](const PipelinePass& pass) { return shape.stage_of(pass.chunk) == stage; });
      REQUIRE(of_stage == stage_order(shape, stage));
    }
  }
}

TEST_CASE("gradients of a chunk are added up in the order of the microbatches, whatever the schedule") {
  for (const PipelineShape& shape : many_shapes()) {
    std::map<std::int64_t, std::int64_t> next;
    for (const PipelinePass& pass : merged_order(shape))
      if (pass.kind == PassKind::backward) REQUIRE(pass.microbatch == next[pass.chunk]++);
  }
}

TEST_CASE("as many microbatches are in flight as theory says, however many there are") {
  for (const PipelineShape& shape : many_shapes())
    for (std::int64_t stage = 0; stage < shape.stages; ++stage) {
      const std::int64_t behind = shape.stages - stage - 1;
      const std::int64_t ahead =
          shape.virtual_stages == 1 ? behind : 2 * behind + (shape.virtual_stages - 1) * shape.stages;
      REQUIRE(in_flight(shape, stage) == std::min(ahead + 1, shape.microbatches * shape.virtual_stages));
    }
}

TEST_CASE("an order that breaks a dependence is refused with the entry that breaks it") {
  const PipelineShape shape{2, 1, 2};
  const std::vector<PipelinePass> good = merged_order(shape);
  REQUIRE(shown(good) == "F0.0 F1.0 F0.1 B0.1 B0.0 F1.1 B1.1 B1.0");
  const auto refused = [&](std::vector<PipelinePass> order, const char* sentence) {
    CHECK_THROWS_WITH_AS(check_order(shape, order), sentence, InternalError);
  };
  auto order = good;
  std::swap(order[1], order[5]);
  refused(
      order,
      "entry 1 of the order, forward of microbatch 1 through chunk 1, comes before forward of microbatch 1 "
      "through chunk 0, which it needs");
  order = good;
  std::swap(order[3], order[4]);
  refused(
      order,
      "entry 3 of the order, backward of microbatch 0 through chunk 0, comes before backward of microbatch "
      "0 through chunk 1, which it needs");
  order = good;
  std::swap(order[5], order[6]);
  refused(
      order,
      "entry 5 of the order, backward of microbatch 1 through chunk 1, comes before forward of microbatch "
      "1 through chunk 1, which it needs");
  order = good;
  order.insert(order.begin() + 3, order[2]);
  refused(order, "entry 3 of the order, forward of microbatch 0 through chunk 1, stood already as entry 2");
  order = good;
  order.pop_back();
  refused(order, "the order of 7 entries lacks backward of microbatch 1 through chunk 0");
  order = good;
  order.push_back({PassKind::forward, 2, 0});
  refused(order,
          "entry 8 of the order, forward of microbatch 2 through chunk 0, does not exist: there are 2 "
          "microbatches and 2 chunks");
}

TEST_CASE("a shuffled order is accepted only if it keeps all dependences") {
  std::mt19937 generator(7);
  const PipelineShape shape{2, 2, 4};
  std::vector<PipelinePass> order = merged_order(shape);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 500; ++round) {
    const std::size_t at = generator() % (order.size() - 1);
    std::swap(order[at], order[at + 1]);
    const PipelinePass a = order[at + 1], b = order[at];  // a stood before b
    const bool same_way = a.kind == b.kind && a.microbatch == b.microbatch;
    const bool needed =
        (same_way && b.chunk - a.chunk == (a.kind == PassKind::forward ? 1 : -1)) ||
        (a.kind == PassKind::forward && b == PipelinePass{PassKind::backward, a.microbatch, a.chunk});
    if (needed) {
      ++refused;
      CHECK_THROWS_AS(check_order(shape, order), InternalError);
      std::swap(order[at], order[at + 1]);
    } else {
      ++accepted;
      CHECK_NOTHROW(check_order(shape, order));
    }
  }
  CHECK(accepted > 100);
  CHECK(refused > 20);
}

TEST_CASE("shapes that make no pipeline are refused") {
  for (const PipelineShape& shape : {PipelineShape{0, 1, 1}, {1, 0, 1}, {1, 1, 0}, {1, 2, 2}, {-1, 1, 1}})
    CHECK_THROWS_AS(merged_order(shape), InternalError);
  CHECK_THROWS_WITH_AS(merged_order({2, 2, 3}),
                       doctest::Contains("3 microbatches must be a multiple of parallel.pipeline = 2"),
                       ConfigurationError);
  CHECK_THROWS_AS(stage_order({2, 1, 2}, 2), InternalError);
}

}  // namespace
