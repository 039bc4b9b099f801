// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/verdict.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace {

using namespace encore;
using namespace encore::graph;

/// Pairs of step times that share the machine's drift, each with its own noise.
Measurements sample(std::size_t pairs, double eager, double replay, double noise, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  Measurements measurements;
  measurements.capture_seconds = 0.5;
  for (std::size_t i = 0; i < pairs; ++i) {
    const double drift = std::exp(0.2 * std::sin(static_cast<double>(i)));
    measurements.times.eager.push_back(eager * drift * std::exp(noise * normal(generator)));
    measurements.times.replay.push_back(replay * drift * std::exp(noise * normal(generator)));
  }
  return measurements;
}

TEST_CASE("a launch-bound step is kept, with the steps after which its capture is paid for") {
  const Verdict verdict = judge(sample(20, 5.0, 2.0, 0.02, 1));
  CHECK(verdict.decision == Decision::keep);
  CHECK(verdict.speedup->speedup == doctest::Approx(2.5).epsilon(0.03));
  CHECK(verdict.speedup->lower > 2.3);
  CHECK(verdict.speedup->upper < 2.7);
  CHECK(verdict.saved_milliseconds == doctest::Approx(3.0).epsilon(0.1));
  CHECK(verdict.break_even_steps.value() ==
        static_cast<std::int64_t>(std::ceil(500 / verdict.saved_milliseconds)));
}

TEST_CASE("equal or slower steps are not kept") {
  for (const double replay : {100.0, 110.0}) {
    const Verdict verdict = judge(sample(20, 100.0, replay, 0.005, 2));
    CHECK(verdict.decision == Decision::do_not_keep);
    CHECK_FALSE(verdict.small_gain);
    CHECK(verdict.speedup->upper < 1.02);
  }
  CHECK_FALSE(judge(sample(20, 100.0, 110.0, 0.005, 2)).break_even_steps);
  CHECK(judge(sample(20, 100.0, 110.0, 0.005, 2)).reason == "replay is slower");
}

TEST_CASE("a gain that is certain and below the threshold is called small") {
  const Verdict verdict = judge(sample(40, 101.0, 100.0, 0.002, 3));
  CHECK(verdict.decision == Decision::do_not_keep);
  CHECK(verdict.small_gain);
  CHECK(verdict.speedup->lower > 1);
  VerdictCriteria strict;
  strict.threshold = 0.001;
  CHECK(judge(sample(40, 101.0, 100.0, 0.002, 3), strict).decision == Decision::keep);
}

TEST_CASE("noise much larger than the gain is nearly always not enough evidence, and few pairs always are") {
  int undecided = 0, kept = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Decision decision = judge(sample(20, 1.0, 1.0, 0.8, seed)).decision;
    undecided += decision == Decision::not_enough_evidence;
    kept += decision == Decision::keep;
  }
  CHECK(undecided >= 180);
  CHECK(kept <= 10);  // 2.5 % are expected
  const Verdict few = judge(sample(7, 5.0, 1.0, 0.001, 4));
  CHECK(few.decision == Decision::not_enough_evidence);
  CHECK(few.reason == "7 pairs of blocks are fewer than 8: more steps");
  CHECK(judge(sample(8, 5.0, 1.0, 0.001, 4)).decision == Decision::keep);
  CHECK(judge({}).decision == Decision::not_enough_evidence);
  CHECK_FALSE(judge({}).speedup);
}

TEST_CASE("a confidence that the pairs cannot give is not enough evidence") {
  VerdictCriteria certain;
  certain.confidence = 0.9999;
  CHECK(judge(sample(10, 5.0, 1.0, 0.001, 4), certain).decision == Decision::not_enough_evidence);
  CHECK(judge(sample(20, 5.0, 1.0, 0.001, 4), certain).decision == Decision::keep);
}

TEST_CASE("different numbers fail whatever the speed") {
  Measurements measurements = sample(20, 5.0, 1.0, 0.01, 5);
  measurements.difference = "the loss of step 3 is 1 eagerly and 2 by replay";
  measurements.loss_difference = 1;
  const Verdict verdict = judge(measurements);
  CHECK(verdict.decision == Decision::different_numbers);
  CHECK(verdict.reason == measurements.difference);
  CHECK(name_of(verdict.decision) == "different numbers");
}

TEST_CASE("one burst of the machine changes neither the decision nor the median by much") {
  Measurements measurements = sample(20, 5.0, 2.0, 0.02, 6);
  const Verdict quiet = judge(measurements);
  measurements.times.eager[7] *= 100;
  measurements.times.replay[12] *= 100;
  const Verdict burst = judge(measurements);
  CHECK(burst.decision == quiet.decision);
  CHECK(burst.speedup->speedup == doctest::Approx(quiet.speedup->speedup).epsilon(0.02));
}

TEST_CASE("the verdict is the same each time, and does not depend on the order of the pairs") {
  const Measurements measurements = sample(25, 5.0, 4.9, 0.1, 7);
  Measurements reversed = measurements;
  for (auto* list : {&reversed.times.eager, &reversed.times.replay}) std::reverse(list->begin(), list->end());
  const Verdict first = judge(measurements), second = judge(measurements), third = judge(reversed);
  for (const Verdict* other : {&second, &third}) {
    CHECK(first.decision == other->decision);
    CHECK(first.speedup->lower == other->speedup->lower);
    CHECK(first.speedup->upper == other->speedup->upper);
    CHECK(first.speedup->speedup == other->speedup->speedup);
  }
}

TEST_CASE("the interval holds the true speed-up as often as it says, whatever the noise") {
  std::mt19937_64 generator(8);
  std::normal_distribution<double> normal;
  std::exponential_distribution<double> exponential;
  constexpr double speedup = 1.3;
  constexpr int rounds = 2000;
  for (const std::size_t pairs : {8, 20, 41}) {
    for (const bool heavy : {false, true}) {
      int covered = 0;
      double width = 0;
      for (int round = 0; round < rounds; ++round) {
        PairedTimes times;
        for (std::size_t i = 0; i < pairs; ++i) {
          // The same noise law on both sides, so the median of the ratio is the speed-up. The heavy one has no
          // mean: a ratio of exponentials.
          const double one = heavy ? exponential(generator) : std::exp(0.1 * normal(generator));
          const double other = heavy ? exponential(generator) : std::exp(0.1 * normal(generator));
          times.eager.push_back(speedup * one);
          times.replay.push_back(other);
        }
        const auto interval = speedup_of(times);
        covered += interval->lower <= speedup && speedup <= interval->upper;
        width += interval->upper - interval->lower;
        CHECK(interval->confidence >= 0.95);
      }
      CAPTURE(pairs);
      CAPTURE(heavy);
      CHECK(covered >= 0.94 * rounds);
      if (!heavy) CHECK(width / rounds < 2.5 * speedup * 0.14 * 4 / std::sqrt(static_cast<double>(pairs)));
    }
  }
}

TEST_CASE("the interval is that of the sign test") {
  PairedTimes times;
  for (int i = 1; i <= 20; ++i) {
    times.eager.push_back(i);
    times.replay.push_back(1);
  }
  // 20 pairs: the 6th smallest and largest, with 1 - 2 P(B <= 5) = 0.9586 (Conover, table A3).
  const auto interval = speedup_of(times);
  CHECK(interval->lower == 6);
  CHECK(interval->upper == 15);
  CHECK(interval->speedup == 10.5);
  CHECK(interval->confidence == doctest::Approx(0.9586).epsilon(1e-4));
}

TEST_CASE("thousands of pairs are judged too") {
  const Verdict verdict = judge(sample(5000, 1.05, 1.0, 0.3, 9));
  CHECK(verdict.decision == Decision::keep);
  CHECK(verdict.speedup->upper - verdict.speedup->lower < 0.05);
}

TEST_CASE("times and criteria that make no sense are refused") {
  CHECK_THROWS_AS(speedup_of({{1, 2}, {1}}), InternalError);
  CHECK_THROWS_AS(speedup_of({{1, 0}, {1, 1}}), InternalError);
  CHECK_THROWS_AS(speedup_of({{1, 1}, {1, std::nan("")}}), InternalError);
  CHECK_THROWS_AS(judge({}, {-0.1, 0.95, 8}), ConfigurationError);
  CHECK_THROWS_AS(judge({}, {0.02, 1.0, 8}), ConfigurationError);
}

}  // namespace
