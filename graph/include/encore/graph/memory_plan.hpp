// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/outline.hpp>

#include <array>
#include <cstddef>
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

/// Gives every activation a place such that no two that are alive at the same time overlap: largest first,
/// into the lowest gap that fits. Touches no device. Throws InternalError naming buffer and segment when an
/// activation is read before any segment wrote it.
MemoryPlan plan_memory(const Outline& outline);

/// Throws InternalError naming both buffers when two live activations share a byte. Independent of how the
/// plan was made.
void audit(const Outline& outline, const MemoryPlan& plan);

/// The activations that are still whole at the end of a step: some segment reads them, and nothing later lies on them.
std::vector<BufferId> activations_left(const Outline& outline, const MemoryPlan& plan);

}  // namespace encore::graph
