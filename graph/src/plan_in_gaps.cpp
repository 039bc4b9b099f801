// SPDX-License-Identifier: Apache-2.0
#include "plan_in_gaps.hpp"

#include <algorithm>

namespace encore::graph {

namespace {

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

std::size_t plan_in_gaps(std::vector<PlannedActivation>& activations, PlacingOrder order) {
  const auto weight = [order](const PlannedActivation& activation) {
    return order == PlacingOrder::largest_first ? activation.bytes
                                                : activation.last_segment - activation.first_segment;
  };
  std::ranges::stable_sort(activations, std::ranges::greater{}, weight);

  std::vector<PlannedActivation> by_offset;
  std::size_t arena_bytes = 0;
  for (PlannedActivation& activation : activations) {
    activation.offset = lowest_gap(activation, by_offset);
    const auto position = std::ranges::upper_bound(
        by_offset, activation.offset, {}, [](const PlannedActivation& placed) { return placed.offset; });
    by_offset.insert(position, activation);
    arena_bytes = std::max(arena_bytes, activation.offset + activation.bytes);
  }
  return arena_bytes;
}

}  // namespace encore::graph
