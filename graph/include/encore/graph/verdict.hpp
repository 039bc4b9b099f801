// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace encore::graph {

/// Mean step times of blocks of eager steps and of the blocks of replayed steps that ran beside them, in
/// milliseconds: element i of both belongs to one pair, whose steps did the same work.
struct PairedTimes {
  std::vector<double> eager;
  std::vector<double> replay;
};

/// How many times faster replay is, and where that number lies with at least `confidence`.
struct SpeedupInterval {
  double speedup;  ///< median of eager / replay over the pairs
  double lower;
  double upper;
  double confidence;  ///< reached; below what was asked for when there are too few pairs
};

/// The median of the pairs' ratios with the interval between two of them in order of size: those are the k-th
/// smallest and the k-th largest, for the largest k with 2 P(B < k) <= 1 - confidence, where B counts heads in
/// as many fair throws as there are pairs (the interval of the sign test). It holds whatever the distribution of
/// the times, as long as pairs are independent. Nothing without pairs. Throws InternalError when the two lists
/// differ in length or a time is not positive and finite.
std::optional<SpeedupInterval> speedup_of(const PairedTimes& times, double confidence = 0.95);

struct Measurements {
  PairedTimes times;
  double capture_seconds = 0;    ///< recording and instantiating, once
  std::size_t eager_bytes = 0;   ///< memory without graphs
  std::size_t replay_bytes = 0;  ///< and with them
  double loss_difference = 0;    ///< largest over the steps
  std::string difference;  ///< first difference between the numbers, as a clause; empty: every bit is equal
};

struct VerdictCriteria {
  double threshold = 0.02;  ///< the gain below which graphs are not worth keeping
  double confidence = 0.95;
  std::size_t fewest_pairs = 8;
};

enum class Decision { keep, do_not_keep, not_enough_evidence, different_numbers };
/// `keep`, `do not keep`, `not enough evidence`, `different numbers`.
std::string_view name_of(Decision decision);

struct Verdict {
  Decision decision = Decision::not_enough_evidence;
  std::optional<SpeedupInterval> speedup;
  double eager_milliseconds = 0;  ///< median of a step
  double replay_milliseconds = 0;
  double saved_milliseconds = 0;  ///< a step: median of the pairs' differences; negative: lost
  /// Steps after which the capture has paid for itself; nothing when replay saves nothing.
  std::optional<std::int64_t> break_even_steps;
  bool small_gain = false;  ///< do not keep, though the whole interval is above 1
  std::string reason;       ///< a clause
};

/// Other numbers than eager's are never worth keeping, whatever the speed. Else with the interval of the speed-up:
/// keep when all of it is above 1 + threshold, do not keep when all of it is below, and otherwise, or with fewer
/// pairs than `fewest_pairs`, the evidence does not suffice. Deterministic. Throws as speedup_of does, and
/// ConfigurationError for a threshold below 0 or a confidence outside (0, 1).
Verdict judge(const Measurements& measurements, const VerdictCriteria& criteria = {});

/// Of an empty list: 0.
double median(std::vector<double> values);

}  // namespace encore::graph
