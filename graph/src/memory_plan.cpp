// SPDX-License-Identifier: Apache-2.0
#include <encore/graph/memory_plan.hpp>

#include <algorithm>
#include <utility>

#include "lifetimes.hpp"
#include "plan_in_gaps.hpp"
#include "plan_in_order.hpp"

namespace encore::graph {

namespace {

using Activations = std::vector<PlannedActivation>;

std::size_t rounded(std::size_t bytes) {
  return (bytes + MemoryPlan::alignment - 1) / MemoryPlan::alignment * MemoryPlan::alignment;
}

/// Most bytes that are alive at once: no arena can be smaller.
std::size_t peak_of(const Activations& activations, std::size_t segments) {
  std::vector<std::size_t> born(segments + 1, 0), dead(segments + 1, 0);
  for (const PlannedActivation& activation : activations) {
    born[activation.first_segment] += activation.bytes;
    dead[activation.last_segment + 1] += activation.bytes;
  }
  std::size_t alive = 0, peak = 0;
  for (std::size_t segment = 0; segment < segments; ++segment) {
    alive += born[segment];
    alive -= dead[segment];
    peak = std::max(peak, alive);
  }
  return peak;
}

/// Tries one way of placing after the other until one needs no more than the peak; keeps the best.
std::size_t place(Activations& activations, std::size_t peak) {
  /// Up to so many activations each is compared with all that are placed already.
  constexpr std::size_t most_compared = 20000;
  constexpr auto largest_first = [](Activations& a) { return plan_in_gaps(a, PlacingOrder::largest_first); };
  constexpr auto longest_lived_first = [](Activations& a) {
    return plan_in_gaps(a, PlacingOrder::longest_lived_first);
  };
  std::vector<std::size_t (*)(Activations&)> ways{plan_in_order};
  if (activations.size() <= most_compared) ways = {largest_first, longest_lived_first, plan_in_order};

  Activations best = activations;
  std::size_t least = ways.front()(best);
  for (std::size_t way = 1; way < ways.size() && least > peak; ++way) {
    Activations placed = activations;
    const std::size_t bytes = ways[way](placed);
    if (bytes >= least) continue;
    least = bytes;
    best = std::move(placed);
  }
  activations = std::move(best);
  return least;
}

}  // namespace

std::size_t MemoryPlan::total_bytes() const {
  std::size_t total = arena_bytes;
  for (int kind = 0; kind < buffer_kinds; ++kind)
    if (static_cast<BufferKind>(kind) != BufferKind::activation) total += bytes_by_kind[kind];
  return total;
}

MemoryPlan plan_memory(const Outline& outline) {
  MemoryPlan plan;
  const std::vector<Lifetime> lifetimes = lifetimes_of(outline);
  for (std::size_t index = 0; index < outline.buffers().size(); ++index) {
    const Buffer& buffer = outline.buffers()[index];
    if (!buffer.part) plan.bytes_by_kind[static_cast<std::size_t>(buffer.kind)] += buffer.bytes();
    if (buffer.kind != BufferKind::activation || !lifetimes[index].used()) continue;
    plan.activations.push_back({static_cast<BufferId>(index), 0, rounded(buffer.bytes()),
                                lifetimes[index].first_write, lifetimes[index].kept_until});
  }
  plan.arena_bytes = place(plan.activations, peak_of(plan.activations, outline.segments().size()));
  std::ranges::sort(plan.activations, {}, &PlannedActivation::buffer);
  return plan;
}

}  // namespace encore::graph
