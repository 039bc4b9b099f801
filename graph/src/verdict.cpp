// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/verdict.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace encore::graph {

namespace {

void check_times(const PairedTimes& times) {
  if (times.eager.size() != times.replay.size())
    throw InternalError(
        fmt::format("{} eager and {} replayed blocks are no pairs", times.eager.size(), times.replay.size()));
  for (const auto* list : {&times.eager, &times.replay})
    for (const double time : *list)
      if (!std::isfinite(time) || time <= 0)
        throw InternalError(fmt::format("a step cannot have taken {} ms", time));
}

/// P(B <= count) for the number B of heads in `throws` fair throws.
double heads_at_most(std::size_t count, std::size_t throws) {
  const auto n = static_cast<double>(throws);
  double sum = 0;
  for (std::size_t heads = 0; heads <= count; ++heads) {
    const auto k = static_cast<double>(heads);
    sum += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) - n * std::log(2.0));
  }
  return std::min(sum, 1.0);
}

/// How many of the smallest, and as many of the largest, ratios are left out of the interval.
std::size_t left_out(std::size_t pairs, double confidence) {
  std::size_t count = 0;
  while (2 * (count + 1) < pairs && 2 * heads_at_most(count + 1, pairs) <= 1 - confidence) ++count;
  return count;
}

std::string reason_of(const Verdict& verdict, const VerdictCriteria& criteria, std::size_t pairs) {
  if (pairs < criteria.fewest_pairs)
    return fmt::format("{} pairs of blocks are fewer than {}: more steps", pairs, criteria.fewest_pairs);
  const double needed = 1 + criteria.threshold;
  switch (verdict.decision) {
    case Decision::keep: return fmt::format("the whole interval is above {:.3g}", needed);
    case Decision::do_not_keep:
      if (verdict.small_gain) return fmt::format("a gain, but the whole interval is below {:.3g}", needed);
      if (verdict.speedup->upper < 1) return "replay is slower";
      return fmt::format("the whole interval is below {:.3g}", needed);
    case Decision::not_enough_evidence:
      return fmt::format("the interval has {:.3g} inside it: more steps, or a quieter machine", needed);
    case Decision::different_numbers: break;
  }
  return {};
}

}  // namespace

std::string_view name_of(Decision decision) {
  constexpr std::array<std::string_view, 4> names{"keep", "do not keep", "not enough evidence",
                                                  "different numbers"};
  return names[static_cast<std::size_t>(decision)];
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

std::optional<SpeedupInterval> speedup_of(const PairedTimes& times, double confidence) {
  check_times(times);
  const std::size_t pairs = times.eager.size();
  if (pairs == 0) return std::nullopt;
  std::vector<double> ratios(pairs);
  for (std::size_t i = 0; i < pairs; ++i) ratios[i] = times.eager[i] / times.replay[i];
  std::sort(ratios.begin(), ratios.end());
  const std::size_t out = left_out(pairs, confidence);
  return SpeedupInterval{median(ratios), ratios[out], ratios[pairs - 1 - out],
                         1 - 2 * std::min(0.5, heads_at_most(out, pairs))};
}

Verdict judge(const Measurements& measurements, const VerdictCriteria& criteria) {
  if (!(criteria.threshold >= 0) || !(criteria.confidence > 0 && criteria.confidence < 1))
    throw ConfigurationError(fmt::format(
        "a verdict needs a threshold of at least 0, not {}, and a confidence between 0 and 1, not {}",
        criteria.threshold, criteria.confidence));
  const PairedTimes& times = measurements.times;
  const std::size_t pairs = times.eager.size();
  Verdict verdict;
  verdict.speedup = speedup_of(times, criteria.confidence);
  verdict.eager_milliseconds = median(times.eager);
  verdict.replay_milliseconds = median(times.replay);
  std::vector<double> saved(pairs);
  for (std::size_t i = 0; i < pairs; ++i) saved[i] = times.eager[i] - times.replay[i];
  verdict.saved_milliseconds = median(saved);
  if (verdict.saved_milliseconds > 0) {
    constexpr double most = 9e15;
    verdict.break_even_steps = static_cast<std::int64_t>(
        std::ceil(std::min(most, 1000 * measurements.capture_seconds / verdict.saved_milliseconds)));
  }

  if (!measurements.difference.empty()) {
    verdict.decision = Decision::different_numbers;
    verdict.reason = measurements.difference;
    return verdict;
  }
  if (pairs >= criteria.fewest_pairs && verdict.speedup->confidence >= criteria.confidence) {
    const double needed = 1 + criteria.threshold;
    if (verdict.speedup->lower > needed) verdict.decision = Decision::keep;
    if (verdict.speedup->upper < needed) verdict.decision = Decision::do_not_keep;
    verdict.small_gain = verdict.decision == Decision::do_not_keep && verdict.speedup->lower > 1;
  }
  verdict.reason = reason_of(verdict, criteria, pairs);
  return verdict;
}

}  // namespace encore::graph
