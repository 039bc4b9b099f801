// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/dump.hpp>

#include <string>
#include <vector>

namespace encore::graph {

/// One thing that is not the same in two dumps.
struct DumpDifference {
  std::string subject;  ///< setting, arena, buffer, segment or run
  std::string name;
  std::string change;  ///< added, removed, moved, resized, retyped, or the field that differs
  std::string before;
  std::string after;
};

/// Settings, arena, buffers, segments and runs, in this order; each found by its name. A segment has moved when it
/// does not belong to the longest list of segments that both dumps have in the same order. Empty: the dumps are the
/// same, but for the order of buffers.
std::vector<DumpDifference> compare(const Dump& before, const Dump& after);

/// For people: grouped by what happened, at most `most` names a group.
std::string to_text(const std::vector<DumpDifference>& differences, std::size_t most = 40);

}  // namespace encore::graph
