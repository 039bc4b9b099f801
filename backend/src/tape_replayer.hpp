// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lane_schedule.hpp"

#include <encore/backend/dependences.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace encore::backend {

/// Replays a tape on a number of threads. What pays depends on how long each kernel takes, on how fast this machine's
/// OpenMP opens a region and on who else uses the cores, none of which can be known beforehand. So the first replays
/// measure each kernel; then the best plans, and the plan of no region at all, take turns for a few replays; and
/// then the one that was fastest stays. Each of these is a whole replay with the same results.
class TapeReplayer {
 public:
  /// Both arguments must outlive it.
  TapeReplayer(std::span<const TapeOperation> operations, const Dependences& dependences, int threads);

  void replay();
  /// What was asked for.
  int threads() const { return threads_; }
  std::size_t bytes() const;

 private:
  /// Without a schedule: all kernels in order on the calling thread.
  struct Candidate {
    std::unique_ptr<LaneSchedule> schedule;
    double predicted = 0;
    std::vector<double> seconds;
  };

  void run_in_order() const;
  /// False where OpenMP granted fewer threads: then the kernels ran in order, and measuring may have begun anew.
  bool run_in_region(LaneSchedule& schedule, std::span<std::atomic<std::int64_t>> times = {});
  bool run(const Candidate& candidate);
  std::unique_ptr<LaneSchedule> schedule_of(const LanePlan& plan) const;
  void measure();
  void choose_candidates();
  void compare();
  void start_again(int lanes);

  std::span<const TapeOperation> operations_;
  const Dependences& dependences_;
  int threads_;
  int lanes_;
  int measured_ = 0;  ///< replays
  std::vector<OperationCost> costs_;
  std::vector<Candidate> candidates_;
};

}  // namespace encore::backend
