// SPDX-License-Identifier: Apache-2.0
#include "lane_schedule.hpp"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace encore::backend {

namespace {

/// Small enough that two lanes finish together, and large enough that taking one costs nothing.
constexpr std::int64_t pieces_of_a_share = 8;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// How often a lane looks whether another one has got on, for a hundred microseconds or two, before it goes to sleep (which costs tens). It never
/// yields the core: newer Linux schedulers take that as leave to put the thread off for long.
constexpr int looks_before_sleep = 4000;

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

LaneSchedule::LaneSchedule(std::span<const TapeOperation> operations, const LanePlan& plan, int lanes,
                           bool spins)
    : lanes_(lanes), spins_(spins), waits_(plan.waits), done_(operations.size()) {
  steps_.reserve(operations.size());
  std::size_t counters = 0, first_wait = 0;
  for (std::size_t index = 0; index < operations.size(); ++index) {
    const std::size_t end = plan.waits_ends[index];
    steps_.push_back({operations[index], plan.lanes[index], static_cast<std::uint32_t>(end - first_wait),
                      waits_.data() + first_wait, counters, plan.announced[index]});
    first_wait = end;
    if (plan.lanes[index] == LanePlan::shared) counters += static_cast<std::size_t>(lanes);
  }
  for (auto& taken : taken_) taken = std::vector<std::atomic<std::int32_t>>(counters);
}

std::size_t LaneSchedule::bytes() const {
  return waits_.capacity() * sizeof(std::uint32_t) + steps_.capacity() * sizeof(Step) +
         done_.size() * sizeof(Counter) + 2 * taken_[0].size() * sizeof(std::int32_t);
}

void LaneSchedule::begin_replay(std::span<Counter> times) {
  ++replays_;
  times_ = times;
}

void LaneSchedule::end_replay() const {
  if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(failure_);
}

void LaneSchedule::fail() {
  if (failed_.exchange(true)) return;
  failure_ = std::current_exception();
  wake_sleepers();
}

bool LaneSchedule::reached(std::uint32_t operation) const {
  return done_[operation].load() >= replays_ * steps_[operation].operation.size || failed_.load();
}

void LaneSchedule::wait_until_over(std::uint32_t operation) {
  for (int look = 0; look < (spins_ ? looks_before_sleep : 1); ++look) {
    if (reached(operation)) return;
    pause();
  }
  std::unique_lock lock(mutex_);
  // Counted before the last look, and the other lane counts its work before it looks for sleepers: both in one order
  // that all threads agree on, so that at least one of them sees the other.
  sleepers_.fetch_add(1);
  changed_.wait(lock, [&] { return reached(operation); });
  sleepers_.fetch_sub(1);
}

void LaneSchedule::wake_sleepers() {
  if (sleepers_.load() == 0) return;
  { const std::lock_guard lock(mutex_); }  // Whoever has counted himself is asleep once this is free.
  changed_.notify_all();
}

bool LaneSchedule::wait_for(const Step& step) {
  for (std::uint32_t i = 0; i < step.waits; ++i) wait_until_over(step.first_wait[i]);
  return !failed_.load(std::memory_order_relaxed);
}

std::int64_t LaneSchedule::run_pieces(const Step& step, int share, int lane) {
  const TapeOperation& operation = step.operation;
  const std::int64_t begin = operation.size * share / lanes_;
  const std::int64_t count = operation.size * (share + 1) / lanes_ - begin;
  const std::int64_t piece = std::max<std::int64_t>(1, (count + pieces_of_a_share - 1) / pieces_of_a_share);
  const std::int64_t pieces = (count + piece - 1) / piece;
  const std::size_t counter = step.counters + static_cast<std::size_t>(share);
  auto& taken = taken_[replays_ % 2][counter];
  if (share == lane) taken_[(replays_ + 1) % 2][counter].store(0, std::memory_order_relaxed);
  std::int64_t items = 0;
  while (taken.load(std::memory_order_relaxed) < pieces) {
    const std::int64_t first = piece * taken.fetch_add(1, std::memory_order_relaxed);
    if (first >= count) break;
    const std::int64_t end = std::min(first + piece, count);
    operation.chunk(operation.functor, begin + first, begin + end, operation.scratch_bytes);
    items += end - first;
  }
  return items;
}

std::int64_t LaneSchedule::run_share_and_help(const Step& step, int lane) {
  std::int64_t items = 0;
  for (int other = 0; other < lanes_; ++other) items += run_pieces(step, (lane + other) % lanes_, lane);
  return items;
}

void LaneSchedule::run_step(std::size_t index, int lane) {
  const Step& step = steps_[index];
  const TapeOperation& operation = step.operation;
  const std::int64_t start = times_.empty() ? 0 : now();
  std::int64_t items = operation.size;
  if (step.lane == LanePlan::shared)
    items = run_share_and_help(step, lane);
  else
    operation.chunk(operation.functor, 0, operation.size, operation.scratch_bytes);
  if (!times_.empty()) times_[index].fetch_add(now() - start, std::memory_order_relaxed);
  if (step.announced && items > 0) {
    done_[index].fetch_add(items);
    wake_sleepers();
  }
}

void LaneSchedule::run_lane(int lane) {
  try {
    for (std::size_t index = 0; index < steps_.size(); ++index) {
      const Step& step = steps_[index];
      if (step.lane != LanePlan::shared && step.lane != lane) continue;
      if (!wait_for(step)) return;
      run_step(index, lane);
    }
  } catch (...) {
    fail();
  }
}

}  // namespace encore::backend
