// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/outline.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace encore::graph {

/// Where an activation lies in the arena, and between which segments (both included) it is alive.
struct PlannedActivation {
  BufferId buffer;
  std::size_t offset;
  std::size_t bytes;  ///< rounded up to the alignment
  std::size_t first_segment;
  std::size_t last_segment;
};

struct MemoryPlan {
  static constexpr std::size_t alignment = 256;

  std::vector<PlannedActivation> activations;  ///< in order of buffer id; unused activations are left out
  std::size_t arena_bytes = 0;
  /// Sum of the sizes of the buffers of each kind; for activations without any reuse.
  std::array<std::size_t, buffer_kinds> bytes_by_kind{};

  /// Arena plus everything that is not an activation.
  std::size_t total_bytes() const;
};

/// Gives every activation a place such that no two that are alive at the same time overlap. Several ways are
/// tried, largest first and longest-lived first into the lowest gap, and in order of birth into the best gap;
/// the smallest arena is kept. Touches no device. Throws InternalError naming buffer and segment when an
/// activation is read before any segment wrote it.
MemoryPlan plan_memory(const Outline& outline);

/// Proves that the segments, in the order of the outline, never share a byte between two activations that are
/// both alive. Independent of how the plan was made: lives are found anew, so a plan made for another order of
/// the same segments is caught too. Throws InternalError naming both buffers, the segment that overwrites, the
/// one that still needs what is overwritten, and their places in the order.
void audit(const Outline& outline, const MemoryPlan& plan);

/// The activations that are still whole at the end of a step: some segment reads them, and nothing later lies on them.
std::vector<BufferId> activations_left(const Outline& outline, const MemoryPlan& plan);

/// A later activation takes the place of an earlier one: `first_write` must not run before `last_use`.
struct PlaceReuse {
  BufferId earlier;
  std::size_t last_use;  ///< segment
  BufferId later;
  std::size_t first_write;  ///< segment
};

/// Every direct reuse of memory in a plan that passes the audit: each is an order that the plan relies on.
/// Without those between two buffers that live in one segment each: their segments may run either way.
std::vector<PlaceReuse> reuses(const Outline& outline, const MemoryPlan& plan);

/// One sentence: which order of which segments would break the plan there, and which buffers would be lost.
std::string order_that_breaks(const Outline& outline, const PlaceReuse& reuse);

}  // namespace encore::graph
