// SPDX-License-Identifier: Apache-2.0
#include <encore/graph/step_profile.hpp>

#include <algorithm>
#include <array>
#include <numeric>

namespace encore::graph {

std::string_view name_of(Bound bound) {
  constexpr std::array<std::string_view, 3> names{"arithmetic", "memory", "launches"};
  return names[static_cast<std::size_t>(bound)];
}

void set_floor(SegmentProfile& segment, const MachineRates& rates) {
  std::array<double, 3> seconds{};  // by what bounds
  const auto part = [&](Bound bound) -> double& { return seconds[static_cast<std::size_t>(bound)]; };
  segment.flops = segment.bytes = 0;
  const double starts = segment.nodes * rates.seconds_per_node;
  const double start = segment.launches.empty() ? 0 : starts / static_cast<double>(segment.launches.size());
  for (LaunchProfile& launch : segment.launches) {
    const double arithmetic = launch.flops > 0 ? launch.flops / rates.flops_per_second : 0;
    const double memory = launch.bytes > 0 ? launch.bytes / rates.bytes_per_second : 0;
    const double longer = std::max(arithmetic, memory);
    part(arithmetic > memory ? Bound::arithmetic : Bound::memory) += longer;
    launch.floor_milliseconds = 1e3 * (longer + start);
    segment.flops += launch.flops;
    segment.bytes += launch.bytes;
  }
  part(Bound::launches) = starts;
  segment.floor_milliseconds = 1e3 * std::accumulate(seconds.begin(), seconds.end(), 0.0);
  segment.bound = static_cast<Bound>(std::ranges::max_element(seconds) - seconds.begin());
}

double StepProfile::milliseconds() const {
  return std::accumulate(
      segments.begin(), segments.end(), 0.0,
      [](double sum, const SegmentProfile& segment) { return sum + segment.milliseconds; });
}

double StepProfile::floor_milliseconds() const {
  return std::accumulate(
      segments.begin(), segments.end(), 0.0,
      [](double sum, const SegmentProfile& segment) { return sum + segment.floor_milliseconds; });
}

}  // namespace encore::graph
