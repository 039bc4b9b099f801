// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/order_check.hpp>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

namespace encore::graph {

namespace {

struct Access {
  std::size_t segment;  ///< number in the planned program
  bool writes;
};

std::string quoted(const std::string& name) { return "'" + name + "'"; }

/// The planned number of each segment of the changed program.
std::vector<std::size_t> planned_numbers(const Outline& planned, const Outline& changed) {
  std::unordered_map<std::string, std::size_t> numbers;
  for (std::size_t index = 0; index < planned.segments().size(); ++index)
    numbers.emplace(planned.segments()[index].name, index);
  std::vector<std::size_t> order;
  for (const Segment& segment : changed.segments()) {
    const auto found = numbers.find(segment.name);
    if (found == numbers.end())
      throw InternalError("segment " + quoted(segment.name) + " is not in the planned program");
    order.push_back(found->second);
    numbers.erase(found);
  }
  if (!numbers.empty())
    throw InternalError(
        "segment " +
        quoted(std::ranges::min_element(numbers, {}, [](const auto& entry) { return entry.second; })->first) +
        " of the planned program is missing");
  return order;
}

/// Who uses each buffer, in the order in which segments run. What uses a whole uses its parts.
std::vector<std::vector<Access>> accesses(const Outline& planned, const std::vector<std::size_t>& order) {
  const std::size_t count = planned.buffers().size();
  std::vector<std::vector<std::size_t>> parts(count);
  for (std::size_t index = 0; index < count; ++index)
    if (const auto& part = planned.buffers()[index].part)
      parts[static_cast<std::size_t>(part->whole)].push_back(index);
  std::vector<std::vector<Access>> list(count);
  const auto add = [&](std::size_t buffer, const Access& access) {
    auto& of_buffer = list[buffer];
    if (!of_buffer.empty() && of_buffer.back().segment == access.segment) {
      of_buffer.back().writes = of_buffer.back().writes || access.writes;
    } else {
      of_buffer.push_back(access);
    }
  };
  for (const std::size_t number : order) {
    const Segment& segment = planned.segments()[number];
    for (const bool writes : {false, true})
      for (const BufferId id : writes ? segment.writes : segment.reads) {
        const auto buffer = static_cast<std::size_t>(id);
        add(buffer, {number, writes});
        for (const std::size_t part : parts[buffer]) add(part, {number, writes});
      }
  }
  return list;
}

[[noreturn]] void throw_swapped(const Outline& planned, std::size_t buffer, const Access& first,
                                const Access& second) {
  const auto does = [&](const Access& access) {
    return quoted(planned.segments()[access.segment].name) + (access.writes ? " writes " : " reads ");
  };
  throw InternalError(does(first) + quoted(planned.buffers()[buffer].name) + " before " + does(second) +
                      "it, in the planned order after");
}

}  // namespace

void check_order(const Outline& planned, const Outline& changed) {
  const auto list = accesses(planned, planned_numbers(planned, changed));
  for (std::size_t buffer = 0; buffer < list.size(); ++buffer) {
    // Two uses may be swapped only if both read. Of all before, the latest in the plan stands for the others.
    const Access* latest = nullptr;
    const Access* latest_write = nullptr;
    for (const Access& access : list[buffer]) {
      const Access* before = access.writes ? latest : latest_write;
      if (before != nullptr && before->segment > access.segment)
        throw_swapped(planned, buffer, *before, access);
      if (latest == nullptr || access.segment > latest->segment) latest = &access;
      if (access.writes && (latest_write == nullptr || access.segment > latest_write->segment))
        latest_write = &access;
    }
  }
}

}  // namespace encore::graph
