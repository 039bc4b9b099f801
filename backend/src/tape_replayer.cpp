// SPDX-License-Identifier: Apache-2.0
#include "tape_replayer.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace encore::backend {

namespace {

constexpr double assumed_nanoseconds = 1e3;
constexpr int measuring_replays = 3;
/// The first measurement cuts every kernel up, which makes small ones slow: later ones leave those whole that took
/// less than this.
constexpr double whole_while_measuring = 32e3;
constexpr int comparing_replays = 3;  ///< of each candidate
constexpr std::size_t most_candidates = 3;
/// Opening a region takes 2 to 40 us, as the other threads spin or sleep, and far longer where they have no core:
/// less work than this is not spread.
constexpr double least_worth_a_region = 30e3;

/// Of all threads: where they are bound to places, the calling one sees its own place alone.
int usable_cores() {
#if defined(_OPENMP)
  int cores = 0;
  for (int place = 0; place < omp_get_num_places(); ++place) cores += omp_get_place_num_procs(place);
  return std::max(cores, omp_get_num_procs());
#else
  return 1;
#endif
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

TapeReplayer::TapeReplayer(std::span<const TapeOperation> operations, const Dependences& dependences,
                           int threads)
    : operations_(operations), dependences_(dependences), threads_(threads), lanes_(threads) {
#if !defined(_OPENMP)
  lanes_ = 1;
#endif
  start_again(lanes_);
}

void TapeReplayer::start_again(int lanes) {
  lanes_ = operations_.empty() ? 1 : lanes;
  measured_ = 0;
  candidates_.clear();
  costs_.clear();
  if (lanes_ > 1)
    for (const TapeOperation& operation : operations_)
      costs_.push_back({operation.size, assumed_nanoseconds});
}

std::size_t TapeReplayer::bytes() const {
  std::size_t bytes = costs_.capacity() * sizeof(OperationCost) + candidates_.capacity() * sizeof(Candidate);
  for (const Candidate& candidate : candidates_)
    if (candidate.schedule) bytes += candidate.schedule->bytes();
  return bytes;
}

std::unique_ptr<LaneSchedule> TapeReplayer::schedule_of(const LanePlan& plan) const {
  return std::make_unique<LaneSchedule>(operations_, plan, lanes_, lanes_ <= usable_cores());
}

void TapeReplayer::run_in_order() const {
  for (const TapeOperation& operation : operations_)
    operation.chunk(operation.functor, 0, operation.size, operation.scratch_bytes);
}

bool TapeReplayer::run_in_region([[maybe_unused]] LaneSchedule& schedule,
                                 [[maybe_unused]] std::span<std::atomic<std::int64_t>> times) {
#if defined(_OPENMP)
  int granted = 1;
  schedule.begin_replay(times);
#pragma omp parallel num_threads(lanes_)
  {
    // Lanes wait for each other, so a schedule runs on exactly its number of threads.
    if (omp_get_num_threads() == lanes_) schedule.run_lane(omp_get_thread_num());
    if (omp_get_thread_num() == 0) granted = omp_get_num_threads();
  }
  if (granted == lanes_) {
    schedule.end_replay();
    return true;
  }
  schedule.cancel_replay();
  // A region inside another one usually gets one thread, which says nothing about the next replay.
  if (granted > 1) start_again(granted);
#endif
  run_in_order();
  return false;
}

void TapeReplayer::measure() {
  const double share_from = measured_ == 0 ? 0 : whole_while_measuring;
  const auto schedule = schedule_of(plan_lanes(dependences_, costs_, lanes_, share_from));
  std::vector<std::atomic<std::int64_t>> times(operations_.size());
  if (!run_in_region(*schedule, times)) return;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const auto time = static_cast<double>(times[i].load());
    costs_[i].nanoseconds = measured_ == 0 ? time : std::min(costs_[i].nanoseconds, time);
  }
  if (++measured_ == measuring_replays) choose_candidates();
}

void TapeReplayer::choose_candidates() {
  Candidate in_order;
  for (const OperationCost& cost : costs_) in_order.predicted += cost.nanoseconds;
  std::vector<LanePlan> plans;
  for (const double share_from : {0.0, 1e3, 4e3, 16e3, 64e3, std::numeric_limits<double>::infinity()}) {
    LanePlan plan = plan_lanes(dependences_, costs_, lanes_, share_from);
    const bool known = std::any_of(plans.begin(), plans.end(),
                                   [&](const LanePlan& other) { return other.lanes == plan.lanes; });
    if (!known && plan.nanoseconds < in_order.predicted && in_order.predicted >= least_worth_a_region)
      plans.push_back(std::move(plan));
  }
  std::stable_sort(plans.begin(), plans.end(), [](const LanePlan& first, const LanePlan& second) {
    return first.nanoseconds < second.nanoseconds;
  });
  const double best = plans.empty() ? in_order.predicted : plans.front().nanoseconds;
  const double worth_trying = 1.5 * best + least_worth_a_region;
  if (in_order.predicted <= worth_trying) candidates_.push_back(std::move(in_order));
  for (const LanePlan& plan : plans)
    if (candidates_.size() < most_candidates && plan.nanoseconds <= worth_trying)
      candidates_.push_back({schedule_of(plan), plan.nanoseconds, {}});
}

bool TapeReplayer::run(const Candidate& candidate) {
  if (candidate.schedule) return run_in_region(*candidate.schedule);
  run_in_order();
  return true;
}

void TapeReplayer::compare() {
  const auto next = std::min_element(
      candidates_.begin(), candidates_.end(),
      [](const Candidate& a, const Candidate& b) { return a.seconds.size() < b.seconds.size(); });
  const auto start = std::chrono::steady_clock::now();
  if (!run(*next)) return;
  next->seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  if (candidates_.back().seconds.size() < comparing_replays) return;
  const auto fastest = std::min_element(
      candidates_.begin(), candidates_.end(),
      [](const Candidate& a, const Candidate& b) { return median(a.seconds) < median(b.seconds); });
  Candidate chosen = std::move(*fastest);
  candidates_.clear();
  candidates_.push_back(std::move(chosen));
}

void TapeReplayer::replay() {
  if (lanes_ <= 1) return run_in_order();
  try {
    if (measured_ < measuring_replays)
      measure();
    else if (candidates_.size() > 1)
      compare();
    else
      run(candidates_.front());
  } catch (...) {
    start_again(lanes_);  // The schedule stopped halfway.
    throw;
  }
}

}  // namespace encore::backend
