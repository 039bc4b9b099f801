// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/lane_plan.hpp>
#include <encore/backend/tape.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <vector>

namespace encore::backend {

/// A LanePlan in the form that the lanes follow, with the counters they meet at. A shared operation is cut into one
/// share a lane; a lane takes its own share piece by piece and then helps the lanes that are behind.
class LaneSchedule {
 public:
  /// `spins`: every lane has a core of its own.
  LaneSchedule(std::span<const TapeOperation> operations, const LanePlan& plan, int lanes, bool spins);

  /// Before the lanes begin, by one thread. `times`, unless empty, is where the lanes add up the nanoseconds that
  /// each operation takes.
  void begin_replay(std::span<std::atomic<std::int64_t>> times = {});
  /// Instead of running the lanes.
  void cancel_replay() { --replays_; }
  /// By each lane's thread. Does not throw.
  void run_lane(int lane);
  /// After all lanes are done: throws what a kernel threw. The schedule cannot be used any more then.
  void end_replay() const;

  std::size_t bytes() const;

 private:
  struct Step {
    TapeOperation operation;
    std::int32_t lane;
    std::uint32_t waits;
    const std::uint32_t* first_wait;
    std::size_t counters;  ///< of a shared operation: where its lanes' counters begin
    bool announced;
  };
  using Counter = std::atomic<std::int64_t>;

  void run_step(std::size_t index, int lane);
  bool wait_for(const Step& step);
  bool reached(std::uint32_t operation) const;
  void wait_until_over(std::uint32_t operation);
  void wake_sleepers();
  std::int64_t run_pieces(const Step& step, int share, int lane);
  std::int64_t run_share_and_help(const Step& step, int lane);
  void fail();

  int lanes_;
  bool spins_;
  std::vector<std::uint32_t> waits_;
  std::vector<Step> steps_;
  /// Work items done of each operation since the schedule was made; only of the announced ones.
  std::vector<Counter> done_;
  /// Pieces taken of each share of each shared operation. A replay uses one set and clears the other.
  std::vector<std::atomic<std::int32_t>> taken_[2];
  std::int64_t replays_ = 0;
  std::atomic<int> sleepers_ = 0;
  std::mutex mutex_;  ///< of lanes that go to sleep
  std::condition_variable changed_;
  std::span<Counter> times_;
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;
};

}  // namespace encore::backend
