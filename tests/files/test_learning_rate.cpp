// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <encore/model/files/learning_rate.hpp>
#include <initializer_list>
#include <numbers>

using encore::model::learning_rate;
using encore::model::LearningRateSchedule;

TEST_CASE("the learning rate rises linearly to its peak and never starts at zero") {
  const LearningRateSchedule schedule{.peak = 2e-3, .floor = 2e-4, .warmup_steps = 10, .decay_steps = 110};
  CHECK(learning_rate(schedule, 0) == doctest::Approx(2e-4).epsilon(1e-14));
  CHECK(learning_rate(schedule, 4) == doctest::Approx(1e-3).epsilon(1e-14));
  CHECK(learning_rate(schedule, 9) == 2e-3);
  CHECK(learning_rate(schedule, 10) == 2e-3);
}

TEST_CASE("the learning rate follows the closed form of half a cosine") {
  const LearningRateSchedule schedule{.peak = 1.0, .floor = 0.1, .warmup_steps = 10, .decay_steps = 110};
  CHECK(learning_rate(schedule, 60) == doctest::Approx(0.55).epsilon(1e-14));
  CHECK(learning_rate(schedule, 35) ==
        doctest::Approx(0.1 + 0.9 * (1 + std::numbers::sqrt2 / 2) / 2).epsilon(1e-14));
  CHECK(learning_rate(schedule, 85) ==
        doctest::Approx(0.1 + 0.9 * (1 - std::numbers::sqrt2 / 2) / 2).epsilon(1e-14));
}

TEST_CASE("the learning rate stays at its floor after the decay") {
  const LearningRateSchedule schedule{.peak = 1.0, .floor = 0.1, .warmup_steps = 10, .decay_steps = 110};
  CHECK(learning_rate(schedule, 109) > 0.1);
  CHECK(learning_rate(schedule, 110) == 0.1);
  CHECK(learning_rate(schedule, 1'000'000'000'000) == 0.1);
}

TEST_CASE("the learning rate never rises after warm-up and never leaves [floor, peak]") {
  for (std::int64_t warmup : {0, 1, 7, 50}) {
    for (std::int64_t decay : {50, 51, 333}) {
      const LearningRateSchedule schedule{
          .peak = 3e-3, .floor = 1e-5, .warmup_steps = warmup, .decay_steps = decay};
      CAPTURE(warmup);
      CAPTURE(decay);
      double previous = INFINITY;
      for (std::int64_t step = warmup; step < 400; ++step) {
        const double rate = learning_rate(schedule, step);
        CHECK(rate <= previous);
        CHECK(rate >= 1e-5);
        CHECK(rate <= 3e-3);
        previous = rate;
      }
    }
  }
}

TEST_CASE("a peak equal to the floor is a constant rate, bit for bit") {
  const LearningRateSchedule schedule{.peak = 1e-4, .floor = 1e-4, .warmup_steps = 0, .decay_steps = 77};
  for (std::int64_t step = 0; step < 100; ++step) CHECK(learning_rate(schedule, step) == 1e-4);
}

TEST_CASE("a warm-up as long as the decay ends in the floor without dividing by zero") {
  const LearningRateSchedule schedule{.peak = 1.0, .floor = 0.5, .warmup_steps = 5, .decay_steps = 5};
  CHECK(learning_rate(schedule, 4) == 1.0);
  CHECK(learning_rate(schedule, 5) == 0.5);
}

TEST_CASE("a run shorter than its warm-up goes on rising") {
  const LearningRateSchedule schedule{.peak = 1.0, .floor = 0.0, .warmup_steps = 100, .decay_steps = 10};
  CHECK(learning_rate(schedule, 9) == 0.1);
  CHECK(learning_rate(schedule, 20) == 0.21);
}
