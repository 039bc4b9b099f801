// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/memory_plan.hpp>

#include <algorithm>
#include <limits>

namespace encore::graph {

namespace {

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
  std::stable_sort(waiting.begin(), waiting.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });

  std::vector<PlannedActivation> by_offset;
  for (PlannedActivation& activation : waiting) {
    activation.offset = lowest_gap(activation, by_offset);
    const auto position = std::upper_bound(by_offset.begin(), by_offset.end(), activation,
                                           [](const auto& a, const auto& b) { return a.offset < b.offset; });
    by_offset.insert(position, activation);
    plan.arena_bytes = std::max(plan.arena_bytes, activation.offset + activation.bytes);
  }
  std::sort(waiting.begin(), waiting.end(), [](const auto& a, const auto& b) { return a.buffer < b.buffer; });
  plan.activations = std::move(waiting);
  return plan;
}

void audit(const Outline& outline, const MemoryPlan& plan) {
  for (std::size_t i = 0; i < plan.activations.size(); ++i) {
    const PlannedActivation& a = plan.activations[i];
    if (a.offset + a.bytes > plan.arena_bytes || a.bytes < outline.buffer(a.buffer).bytes())
      throw InternalError("'" + outline.buffer(a.buffer).name + "' does not fit into its place in the arena");
    for (std::size_t j = i + 1; j < plan.activations.size(); ++j) {
      const PlannedActivation& b = plan.activations[j];
      if (alive_together(a, b) && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes)
        throw InternalError("'" + outline.buffer(a.buffer).name + "' and '" + outline.buffer(b.buffer).name +
                            "' are alive together and share memory");
    }
  }
}

}  // namespace encore::graph
