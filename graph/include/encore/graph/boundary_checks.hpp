// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/program.hpp>
#include <encore/kernels/checksum.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace encore::graph {

/// Steps that a ring of checksums remembers.
inline constexpr std::int64_t checksum_slots = 4;

/// A program with a boundary after each of its segments: a checksum of what the segment wrote and others will read,
/// put into a small ring in device memory. Boundaries belong to the module, phase and layer of their segment, so
/// they are captured with it, and the first bad one of a step that went wrong is known without running it again.
template <class Space>
struct CheckedProgram {
  static constexpr std::int64_t slots = checksum_slots;

  Program<Space> program;
  BufferId ring;  ///< [slots, boundaries, 4] uint64, which are kernels::Checksum; zero at first
  BufferId slot;  ///< [1] int64: the slot that the next step writes; zero at first
  std::vector<std::string> boundaries;  ///< names of the segments that they follow
};

/// Buffers keep their ids. A workspace that no other segment reads has no part in the checksums.
template <class Space>
CheckedProgram<Space> with_boundary_checks(const Program<Space>& program);

/// The first boundary with an element that is infinite or not a number, as a clause: `segment 'layer.3/mlp/forward'
/// wrote 17 values of 4096 that are not finite`. Empty when there is none.
std::string first_non_finite(const std::vector<std::string>& boundaries,
                             std::span<const kernels::Checksum> checksums);

/// The first boundary at which two runs of the same step differ, as a clause; empty when there is none.
std::string first_difference(const std::vector<std::string>& boundaries,
                             std::span<const kernels::Checksum> left,
                             std::span<const kernels::Checksum> right);

}  // namespace encore::graph
