// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/memory_plan.hpp>

#include <cstddef>
#include <vector>

namespace encore::graph {

enum class PlacingOrder { largest_first, longest_lived_first };

/// Gives the activations their places one by one, each the lowest gap between those placed before that are
/// alive with it. Time grows with the square of their number. Reorders them; returns the bytes of the arena.
std::size_t plan_in_gaps(std::vector<PlannedActivation>& activations, PlacingOrder order);

}  // namespace encore::graph
