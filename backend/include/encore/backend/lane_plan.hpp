// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace encore::backend {

class Dependences;

/// What one thread needs for all work items of an operation.
struct OperationCost {
  std::int64_t size;
  double nanoseconds;
};

/// Who runs which operation of a tape. Every lane (thread) goes through the operations in order, runs those of
/// its own, takes part in the shared ones, and waits only for the operations listed here.
struct LanePlan {
  static constexpr std::int32_t shared = -1;

  std::vector<std::int32_t> lanes;      ///< the lane of each operation, or `shared`
  std::vector<std::uint32_t> waits;     ///< of all operations, one after another
  std::vector<std::size_t> waits_ends;  ///< of each operation
  std::vector<bool> announced;          ///< whether another lane waits for the operation
  double nanoseconds = 0;               ///< predicted for one replay, without opening the parallel region

  std::span<const std::uint32_t> waits_of(std::size_t operation) const {
    const std::size_t begin = operation == 0 ? 0 : waits_ends[operation - 1];
    return {waits.data() + begin, waits_ends[operation] - begin};
  }
};

/// Operations that take `share_from` nanoseconds or more are cut up among all lanes; each other one goes whole to
/// the lane on which it is over first. So a chain of small operations stays on one lane, without any waiting, and
/// independent chains spread over the lanes.
LanePlan plan_lanes(const Dependences& dependences, std::span<const OperationCost> costs, int lanes,
                    double share_from);

}  // namespace encore::backend
