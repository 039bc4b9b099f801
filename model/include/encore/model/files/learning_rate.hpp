// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace encore::model {

/// Linear warm-up, then half a cosine down to a floor, then that floor.
struct LearningRateSchedule {
  double peak = 0;
  double floor = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps =
      0;  ///< the step, counted from the first of the run, at which the floor is reached
};

/// The rate of step `step`, counted from 0. With w = warmup_steps and d = decay_steps:
///
///   step < w       peak * (step + 1) / w            (never 0, so the first step already learns)
///   w <= step < d  floor + (peak - floor) * (1 + cos(pi * (step - w) / (d - w))) / 2
///   step >= d      floor
///
/// A pure function: resuming at any step gives the same rate. `peak == floor` is a constant rate after
/// warm-up. Formula: Loshchilov and Hutter, SGDR, arXiv:1608.03983, equation 5, with one cycle.
double learning_rate(const LearningRateSchedule& schedule, std::int64_t step) noexcept;

}  // namespace encore::model
