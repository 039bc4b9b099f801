// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/memory_plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace {

using namespace encore;
using namespace encore::graph;

BufferId add(Outline& outline, const std::string& name, std::int64_t bytes,
             BufferKind kind = BufferKind::activation) {
  return outline.add_buffer({name, backend::DataType::uint8, {bytes}, kind});
}

void add_segment(Outline& outline, std::vector<BufferId> reads, std::vector<BufferId> writes) {
  outline.add_segment({"segment " + std::to_string(outline.segments().size()), Module::mlp, Phase::forward,
                       -1, -1, std::move(reads), std::move(writes)});
}

TEST_CASE("activations whose lives do not overlap share memory") {
  Outline outline;
  const auto a = add(outline, "a", 1000), b = add(outline, "b", 1000), c = add(outline, "c", 1000);
  add_segment(outline, {}, {a});
  add_segment(outline, {a}, {b});
  add_segment(outline, {b}, {c});
  const MemoryPlan plan = plan_memory(outline);
  CHECK(plan.arena_bytes == 2 * 1024);
  CHECK(plan.activations[0].offset == plan.activations[2].offset);
  CHECK(plan.bytes_by_kind[static_cast<int>(BufferKind::activation)] == 3000);
}

TEST_CASE("a buffer saved for the backward pass outlives everything between") {
  Outline outline;
  const auto saved = add(outline, "saved", 512), middle = add(outline, "middle", 512);
  add_segment(outline, {}, {saved});
  add_segment(outline, {}, {middle});
  add_segment(outline, {middle}, {});
  add_segment(outline, {saved}, {});
  CHECK(plan_memory(outline).arena_bytes == 1024);
}

TEST_CASE("only activations are placed in the arena, and parts count once") {
  Outline outline;
  const auto all = add(outline, "all", 4096, BufferKind::parameter);
  outline.add_buffer({"part", backend::DataType::uint8, {100}, BufferKind::parameter, BufferPart{all, 256}});
  const auto input = add(outline, "input", 64, BufferKind::input);
  add_segment(outline, {all, input}, {});
  const MemoryPlan plan = plan_memory(outline);
  CHECK(plan.arena_bytes == 0);
  CHECK(plan.total_bytes() == 4096 + 64);
}

TEST_CASE("reading an activation that nothing wrote is refused by name") {
  Outline outline;
  const auto a = add(outline, "ghost", 16);
  add_segment(outline, {a}, {});
  CHECK_THROWS_WITH_AS(plan_memory(outline), "segment 'segment 0' reads 'ghost' before any segment wrote it",
                       InternalError);
}

TEST_CASE("names that are taken, unknown buffers and parts that stick out are refused") {
  Outline outline;
  const auto a = add(outline, "a", 16, BufferKind::parameter);
  CHECK_THROWS_AS(add(outline, "a", 16), InternalError);
  CHECK_THROWS_AS(outline.add_buffer({"b", backend::DataType::uint8, {-1}}), InternalError);
  CHECK_THROWS_AS(
      outline.add_buffer({"c", backend::DataType::uint8, {10}, BufferKind::parameter, BufferPart{a, 8}}),
      InternalError);
  CHECK_THROWS_AS(add_segment(outline, {static_cast<BufferId>(99)}, {}), InternalError);
}

TEST_CASE("random programs never have two live activations in the same place") {
  std::mt19937 generator(3);
  for (int round = 0; round < 200; ++round) {
    Outline outline;
    std::vector<BufferId> written;
    const int segments = 5 + static_cast<int>(generator() % 40);
    for (int segment = 0; segment < segments; ++segment) {
      std::vector<BufferId> reads, writes;
      for (int i = 0; i < 3 && !written.empty(); ++i) reads.push_back(written[generator() % written.size()]);
      for (std::uint32_t i = 0; i < 1 + generator() % 3; ++i) {
        const auto id = add(outline, std::to_string(segment) + "." + std::to_string(i),
                            static_cast<std::int64_t>(generator() % 5000));
        writes.push_back(id);
        written.push_back(id);
      }
      add_segment(outline, reads, writes);
    }
    const MemoryPlan plan = plan_memory(outline);
    CHECK_NOTHROW(audit(outline, plan));
    CHECK(plan.arena_bytes <=
          plan.bytes_by_kind[static_cast<int>(BufferKind::activation)] + 256 * written.size());
  }
}

TEST_CASE(
    "a program of very many activations is planned quickly, without overlap, and not much above its peak") {
  std::mt19937 generator(5);
  Outline outline;
  constexpr int segments = 30000;
  std::vector<std::vector<BufferId>> last_reads(segments);
  std::vector<std::size_t> alive(segments, 0);
  for (int segment = 0; segment < segments; ++segment) {
    const std::int64_t bytes = 256 * static_cast<std::int64_t>(1 + generator() % 64);
    const auto id = add(outline, std::to_string(segment), bytes);
    const int last = std::min<int>(segments - 1, segment + static_cast<int>(generator() % 200));
    if (last > segment) last_reads[static_cast<std::size_t>(last)].push_back(id);
    for (int at = segment; at <= last; ++at)
      alive[static_cast<std::size_t>(at)] += static_cast<std::size_t>(bytes);
    add_segment(outline, last_reads[static_cast<std::size_t>(segment)], {id});
  }
  const MemoryPlan plan = plan_memory(outline);
  CHECK_NOTHROW(audit(outline, plan));
  const std::size_t peak = *std::ranges::max_element(alive);
  CHECK(plan.arena_bytes >= peak);
  CHECK(plan.arena_bytes <= peak + peak / 4);
}

TEST_CASE("the audit finds two live activations that share a byte") {
  Outline outline;
  const auto a = add(outline, "first", 512), b = add(outline, "second", 512);
  add_segment(outline, {}, {a, b});
  MemoryPlan plan = plan_memory(outline);
  plan.activations[1].offset = plan.activations[0].offset + 256;
  CHECK_THROWS_WITH_AS(audit(outline, plan), "'first' and 'second' are alive together and share memory",
                       InternalError);
}

}  // namespace
