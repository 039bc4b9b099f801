// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/learning_rate.hpp>

#include <cmath>
#include <numbers>

namespace encore::model {

double learning_rate(const LearningRateSchedule& schedule, std::int64_t step) noexcept {
  const std::int64_t warmup = schedule.warmup_steps;
  if (step < warmup) return schedule.peak * (static_cast<double>(step) + 1.0) / static_cast<double>(warmup);
  if (step >= schedule.decay_steps) return schedule.floor;
  const double progress =
      static_cast<double>(step - warmup) / static_cast<double>(schedule.decay_steps - warmup);
  const double weight = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return schedule.peak == schedule.floor ? schedule.peak
                                         : weight * schedule.peak + (1.0 - weight) * schedule.floor;
}

}  // namespace encore::model
