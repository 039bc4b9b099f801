// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/memory_plan.hpp>
#include <encore/graph/outline.hpp>
#include <encore/graph/policy.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace encore::graph {

/// A buffer as dumps show it.
struct DumpedBuffer {
  std::string name;
  std::string type;
  std::string kind;
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
  std::string part_of;                        ///< empty: of none
  std::uint64_t part_offset = 0;              ///< in bytes
  std::optional<std::uint64_t> arena_offset;  ///< of an activation
  std::string first_segment;                  ///< between which an activation lives
  std::string last_segment;
  friend bool operator==(const DumpedBuffer&, const DumpedBuffer&) = default;
};

struct DumpedSegment {
  std::string name;
  std::string module;
  std::string phase;
  std::int64_t layer = -1;
  std::int64_t microbatch = -1;
  std::vector<std::string> reads;
  std::vector<std::string> writes;
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
  std::vector<std::string> kernels;  ///< labels in launch order
  std::string eager_because;
  friend bool operator==(const DumpedSegment&, const DumpedSegment&) = default;
};

struct DumpedRun {
  std::string name;
  bool captured = false;
  std::string first_segment;
  std::string last_segment;
  std::uint64_t segments = 0;
  std::uint64_t kernels = 0;
  friend bool operator==(const DumpedRun&, const DumpedRun&) = default;
};

/// A program with its memory and its runs, in names and numbers alone: no address and no time, so that two dumps of
/// the same program are equal byte for byte.
struct Dump {
  std::vector<std::pair<std::string, std::string>> settings;  ///< configuration keys and their values
  std::uint64_t arena_bytes = 0;
  std::vector<DumpedBuffer> buffers;
  std::vector<DumpedSegment> segments;
  std::vector<DumpedRun> runs;
  friend bool operator==(const Dump&, const Dump&) = default;
};

/// `kernels`: labels by segment; may be empty.
Dump make_dump(const Outline& outline, const MemoryPlan& plan, const std::vector<Run>& runs,
               const std::vector<std::vector<std::string>>& kernels,
               std::vector<std::pair<std::string, std::string>> settings);

std::string to_json(const Dump& dump);
/// The runs with their segments and kernels, then the buffers, as a person reads them.
std::string to_text(const Dump& dump);
/// For Graphviz: segments in the clusters of their runs, and an edge from each segment that writes a buffer to the
/// next ones that read it.
std::string to_dot(const Dump& dump);

/// Reads what to_json wrote. Throws InputFileError naming `source`, the place and what is wrong there.
Dump parse_dump(std::string_view json, std::string_view source);

}  // namespace encore::graph
