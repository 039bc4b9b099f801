// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/memory_plan.hpp>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>

#include "plan_in_order.hpp"

namespace encore::graph {

namespace {

/// Up to so many activations each is compared with all that are placed already.
constexpr std::size_t most_compared = 20000;
constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

struct Lifetime {
  std::size_t first_write = never;
  std::size_t last_use = 0;
};

std::size_t rounded(std::size_t bytes) {
  return (bytes + MemoryPlan::alignment - 1) / MemoryPlan::alignment * MemoryPlan::alignment;
}

std::vector<Lifetime> lifetimes_of(const Outline& outline) {
  std::vector<Lifetime> lifetimes(outline.buffers().size());
  const auto is_activation = [&](BufferId id) { return outline.buffer(id).kind == BufferKind::activation; };
  for (std::size_t index = 0; index < outline.segments().size(); ++index) {
    const Segment& segment = outline.segments()[index];
    for (const BufferId id : segment.reads) {
      Lifetime& lifetime = lifetimes[static_cast<std::size_t>(id)];
      if (is_activation(id) && lifetime.first_write == never)
        throw InternalError("segment '" + segment.name + "' reads '" + outline.buffer(id).name +
                            "' before any segment wrote it");
      lifetime.last_use = index;
    }
    for (const BufferId id : segment.writes) {
      Lifetime& lifetime = lifetimes[static_cast<std::size_t>(id)];
      lifetime.first_write = std::min(lifetime.first_write, index);
      lifetime.last_use = index;
    }
  }
  return lifetimes;
}

bool alive_together(const PlannedActivation& a, const PlannedActivation& b) {
  return a.first_segment <= b.last_segment && b.first_segment <= a.last_segment;
}

/// Lowest offset at which `activation` fits between those placed before it that are alive with it.
std::size_t lowest_gap(const PlannedActivation& activation, const std::vector<PlannedActivation>& by_offset) {
  std::size_t offset = 0;
  for (const PlannedActivation& placed : by_offset) {
    if (!alive_together(activation, placed)) continue;
    if (placed.offset >= offset + activation.bytes) break;
    offset = std::max(offset, placed.offset + placed.bytes);
  }
  return offset;
}

/// Gives every activation the lowest offset that is free, the largest first. Returns the bytes of the arena.
std::size_t plan_largest_first(std::vector<PlannedActivation>& activations) {
  std::stable_sort(activations.begin(), activations.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });

  std::vector<PlannedActivation> by_offset;
  std::size_t arena_bytes = 0;
  for (PlannedActivation& activation : activations) {
    activation.offset = lowest_gap(activation, by_offset);
    const auto position = std::upper_bound(by_offset.begin(), by_offset.end(), activation,
                                           [](const auto& a, const auto& b) { return a.offset < b.offset; });
    by_offset.insert(position, activation);
    arena_bytes = std::max(arena_bytes, activation.offset + activation.bytes);
  }
  return arena_bytes;
}

[[noreturn]] void throw_shared(const Outline& outline, const PlannedActivation& a,
                               const PlannedActivation& b) {
  throw InternalError("'" + outline.buffer(std::min(a.buffer, b.buffer)).name + "' and '" +
                      outline.buffer(std::max(a.buffer, b.buffer)).name +
                      "' are alive together and share memory");
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
  std::vector<PlannedActivation> waiting;
  for (std::size_t index = 0; index < outline.buffers().size(); ++index) {
    const Buffer& buffer = outline.buffers()[index];
    if (!buffer.part) plan.bytes_by_kind[static_cast<std::size_t>(buffer.kind)] += buffer.bytes();
    if (buffer.kind != BufferKind::activation || lifetimes[index].first_write == never) continue;
    waiting.push_back({static_cast<BufferId>(index), 0, rounded(buffer.bytes()), lifetimes[index].first_write,
                       lifetimes[index].last_use});
  }
  plan.arena_bytes = waiting.size() > most_compared ? plan_in_order(waiting) : plan_largest_first(waiting);
  std::sort(waiting.begin(), waiting.end(), [](const auto& a, const auto& b) { return a.buffer < b.buffer; });
  plan.activations = std::move(waiting);
  return plan;
}

void audit(const Outline& outline, const MemoryPlan& plan) {
  const auto& activations = plan.activations;
  std::vector<std::size_t> births(activations.size());
  std::iota(births.begin(), births.end(), std::size_t{0});
  std::vector<std::size_t> deaths = births;
  std::ranges::stable_sort(births, {}, [&](std::size_t i) { return activations[i].first_segment; });
  std::ranges::stable_sort(deaths, {}, [&](std::size_t i) { return activations[i].last_segment; });

  std::map<std::size_t, const PlannedActivation*> alive;  // by offset
  auto dying = deaths.begin();
  for (const std::size_t born : births) {
    const PlannedActivation& activation = activations[born];
    if (activation.offset + activation.bytes > plan.arena_bytes ||
        activation.bytes < outline.buffer(activation.buffer).bytes())
      throw InternalError("'" + outline.buffer(activation.buffer).name +
                          "' does not fit into its place in the arena");
    for (; activations[*dying].last_segment < activation.first_segment; ++dying) {
      const auto entry = alive.find(activations[*dying].offset);
      if (entry != alive.end() && entry->second == &activations[*dying]) alive.erase(entry);
    }
    if (activation.bytes == 0) continue;
    // Those alive do not overlap each other, so the neighbours in the arena stand for all.
    const auto after = alive.lower_bound(activation.offset);
    if (after != alive.end() && after->first < activation.offset + activation.bytes)
      throw_shared(outline, activation, *after->second);
    if (after != alive.begin()) {
      const PlannedActivation& before = *std::prev(after)->second;
      if (before.offset + before.bytes > activation.offset) throw_shared(outline, activation, before);
    }
    alive.emplace(activation.offset, &activation);
  }
}

}  // namespace encore::graph
