// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/outline.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace encore::graph {

/// What a device reaches where nothing else is in the way.
struct MachineRates {
  double flops_per_second = 0;  ///< of a large matrix product
  double bytes_per_second = 0;  ///< of a large copy; what is read and what is written both count
  double seconds_per_node = 0;  ///< of one tiny kernel in a replayed chain of them
};

/// What a kernel, or all of a segment, cannot be faster than: the time of its arithmetic, of its memory traffic, or of
/// starting its kernels.
enum class Bound { arithmetic, memory, launches };
std::string_view name_of(Bound bound);

/// One kernel launch of a segment.
struct LaunchProfile {
  std::string label;
  double flops = 0;
  double bytes = 0;  ///< read and written, by the declared accesses
  double floor_milliseconds = 0;
};

struct SegmentProfile {
  std::size_t index = 0;
  std::string name;
  Module module = Module::embedding;
  Phase phase = Phase::forward;
  std::int32_t layer = -1;
  std::int32_t microbatch = -1;
  double milliseconds = 0;  ///< of one run
  double nodes = 0;         ///< of its graph; where it was timed eagerly, its launches
  double flops = 0;
  double bytes = 0;
  /// The sum over the launches of the longer of flops / rate and bytes / rate, and of the nodes' starts.
  double floor_milliseconds = 0;
  Bound bound = Bound::launches;  ///< the largest part of the floor
  std::string eager_because;      ///< why it was timed without a graph; empty: it was timed by replay
  std::vector<LaunchProfile> launches;

  double gap_milliseconds() const { return milliseconds - floor_milliseconds; }
};

/// Fills in flops, bytes, floor and bound from launches and nodes.
void set_floor(SegmentProfile& segment, const MachineRates& rates);

struct ProfileOptions {
  std::optional<MachineRates> rates = std::nullopt;  ///< nothing: they are measured
  int samples = 10;                                  ///< of each segment; the median counts
  double sample_milliseconds = 0.3;  ///< a sample repeats the segment until it takes about this long,
  int most_repeats = 32;             ///< or so many times
  double most_milliseconds = 500;    ///< of sampling one segment; at least three samples are taken
  int step_samples = 20;             ///< replays of the whole step; 0: none
};

struct StepProfile {
  MachineRates rates;
  std::vector<SegmentProfile> segments;  ///< in the order of the program
  /// Of one replay of all segments as one graph, among others; nothing when it was not asked for.
  std::optional<double> replay_milliseconds;
  std::size_t replay_nodes = 0;
  /// Why (a part of) that replay ran eagerly; empty: it did not.
  std::string replay_refusal;

  double milliseconds() const;        ///< sum of the segments
  double floor_milliseconds() const;  ///< sum of the segments
};

}  // namespace encore::graph
