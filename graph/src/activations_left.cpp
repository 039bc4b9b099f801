// SPDX-License-Identifier: Apache-2.0
#include <encore/graph/memory_plan.hpp>

#include <algorithm>
#include <iterator>
#include <map>

namespace encore::graph {

std::vector<BufferId> activations_left(const Outline& outline, const MemoryPlan& plan) {
  std::vector<bool> read(outline.buffers().size(), false);
  for (const Segment& segment : outline.segments())
    for (const BufferId id : segment.reads) read[static_cast<std::size_t>(id)] = true;

  std::vector<PlannedActivation> latest_first = plan.activations;
  std::ranges::stable_sort(latest_first, std::ranges::greater(), &PlannedActivation::first_segment);

  std::vector<BufferId> left;
  std::map<std::size_t, std::size_t> covered;  // begin to end of what later activations lie on, disjoint
  for (const PlannedActivation& activation : latest_first) {
    std::size_t begin = activation.offset, end = activation.offset + activation.bytes;
    if (begin == end) continue;
    auto at = covered.upper_bound(begin);
    if (at != covered.begin() && std::prev(at)->second > begin) --at;
    const bool overlaps = at != covered.end() && at->first < end;
    if (!overlaps && read[static_cast<std::size_t>(activation.buffer)]) left.push_back(activation.buffer);
    while (at != covered.end() && at->first < end) {
      begin = std::min(begin, at->first);
      end = std::max(end, at->second);
      at = covered.erase(at);
    }
    covered.emplace(begin, end);
  }
  std::ranges::sort(left);
  return left;
}

}  // namespace encore::graph
