// SPDX-License-Identifier: Apache-2.0
#include <encore/graph/dump_difference.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <unordered_map>

namespace encore::graph {

namespace {

using Differences = std::vector<DumpDifference>;
using Names = std::vector<std::string>;

std::string shown(const std::string& value) { return value; }
std::string shown(bool value) { return value ? "captured" : "eager"; }
std::string shown(std::int64_t value) { return std::to_string(value); }
std::string shown(std::uint64_t value) { return std::to_string(value); }
std::string shown(const std::optional<std::uint64_t>& value) {
  return value ? std::to_string(*value) : "nowhere";
}
std::string shown(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}
std::string shown(const Names& names) { return fmt::format("{}", fmt::join(names, ", ")); }

/// What one list has and the other has not, as often as it does: `-a +b`. The same names in another order: both lists.
std::pair<std::string, std::string> changes_of(const Names& before, const Names& after) {
  std::map<std::string, std::int64_t> counts;
  for (const std::string& name : before) --counts[name];
  for (const std::string& name : after) ++counts[name];
  Names lost, gained;
  for (const auto& [name, count] : counts) {
    auto& list = count < 0 ? lost : gained;
    if (count != 0)
      list.push_back(std::abs(count) == 1 ? name : fmt::format("{} ({})", name, std::abs(count)));
  }
  if (lost.empty() && gained.empty()) return {shown(before), shown(after)};
  return {shown(lost), shown(gained)};
}

/// Compares the fields of one thing.
class Comparison {
 public:
  Comparison(Differences& differences, std::string subject, std::string name)
      : differences_(differences), subject_(std::move(subject)), name_(std::move(name)) {}

  template <class Value>
  void field(const char* change, const Value& before, const Value& after) {
    if (before != after) differences_.push_back({subject_, name_, change, shown(before), shown(after)});
  }
  void names(const char* change, const Names& before, const Names& after) {
    if (before == after) return;
    auto [lost, gained] = changes_of(before, after);
    differences_.push_back({subject_, name_, change, std::move(lost), std::move(gained)});
  }

 private:
  Differences& differences_;
  std::string subject_;
  std::string name_;
};

void compare_entry(Comparison comparison, const DumpedBuffer& before, const DumpedBuffer& after) {
  comparison.field("retyped", before.type, after.type);
  comparison.field("reshaped", before.shape, after.shape);
  comparison.field("resized", before.bytes, after.bytes);
  comparison.field("of another kind", before.kind, after.kind);
  comparison.field("part of another", before.part_of, after.part_of);
  comparison.field("moved in its whole", before.part_offset, after.part_offset);
  comparison.field("moved in the arena", before.arena_offset, after.arena_offset);
  comparison.field("alive from", before.first_segment, after.first_segment);
  comparison.field("alive to", before.last_segment, after.last_segment);
}

void compare_entry(Comparison comparison, const DumpedSegment& before, const DumpedSegment& after) {
  comparison.field("of another module", before.module, after.module);
  comparison.field("of another phase", before.phase, after.phase);
  comparison.field("of another layer", before.layer, after.layer);
  comparison.field("of another microbatch", before.microbatch, after.microbatch);
  comparison.names("with other reads", before.reads, after.reads);
  comparison.names("with other writes", before.writes, after.writes);
  comparison.field("with other bytes read", before.read_bytes, after.read_bytes);
  comparison.field("with other bytes written", before.written_bytes, after.written_bytes);
  comparison.names("with other kernels", before.kernels, after.kernels);
  comparison.field("eager for another reason", before.eager_because, after.eager_because);
}

void compare_entry(Comparison comparison, const DumpedRun& before, const DumpedRun& after) {
  comparison.field("captured or eager", before.captured, after.captured);
  comparison.field("begun elsewhere", before.first_segment, after.first_segment);
  comparison.field("ended elsewhere", before.last_segment, after.last_segment);
  comparison.field("of another length", before.segments, after.segments);
  comparison.field("with other numbers of kernels", before.kernels, after.kernels);
}

std::string essence(const DumpedBuffer& buffer) {
  return fmt::format("{} {}", buffer.type, shown(buffer.shape));
}
std::string essence(const DumpedSegment& segment) { return segment.module + " " + segment.phase; }
std::string essence(const DumpedRun& run) { return shown(run.captured); }

template <class Entry>
std::unordered_map<std::string, std::size_t> places_of(const std::vector<Entry>& entries) {
  std::unordered_map<std::string, std::size_t> places;
  for (std::size_t index = 0; index < entries.size(); ++index) places.emplace(entries[index].name, index);
  return places;
}

/// Members of the longest rising subsequence of distinct numbers (patience sorting).
std::vector<bool> longest_rising(const std::vector<std::size_t>& numbers) {
  std::vector<std::size_t> tops;  // index of the smallest last number of a rising list of each length
  std::vector<std::size_t> before(numbers.size(), numbers.size());
  for (std::size_t index = 0; index < numbers.size(); ++index) {
    const auto place =
        std::ranges::lower_bound(tops, numbers[index], {}, [&](std::size_t i) { return numbers[i]; });
    if (place != tops.begin()) before[index] = *std::prev(place);
    if (place == tops.end()) {
      tops.push_back(index);
    } else {
      *place = index;
    }
  }
  std::vector<bool> member(numbers.size(), false);
  for (std::size_t index = tops.empty() ? numbers.size() : tops.back(); index < numbers.size();
       index = before[index])
    member[index] = true;
  return member;
}

template <class Entry>
std::string place_in(const std::vector<Entry>& entries, std::size_t index) {
  return index == 0 ? "first" : "after " + entries[index - 1].name;
}

template <class Entry>
void compare_order(const char* subject, const std::vector<Entry>& before, const std::vector<Entry>& after,
                   Differences& differences) {
  const auto places = places_of(after);
  std::vector<std::size_t> common, there;
  for (std::size_t index = 0; index < before.size(); ++index)
    if (const auto found = places.find(before[index].name); found != places.end()) {
      common.push_back(index);
      there.push_back(found->second);
    }
  const std::vector<bool> stays = longest_rising(there);
  for (std::size_t i = 0; i < common.size(); ++i)
    if (!stays[i])
      differences.push_back(
          {subject, before[common[i]].name, "moved", place_in(before, common[i]), place_in(after, there[i])});
}

template <class Entry>
void compare_lists(const char* subject, const std::vector<Entry>& before, const std::vector<Entry>& after,
                   Differences& differences) {
  const auto places = places_of(after), old_places = places_of(before);
  for (const Entry& entry : before)
    if (!places.contains(entry.name))
      differences.push_back({subject, entry.name, "removed", essence(entry), ""});
  for (const Entry& entry : after)
    if (!old_places.contains(entry.name))
      differences.push_back({subject, entry.name, "added", "", essence(entry)});
  for (const Entry& entry : before)
    if (const auto found = places.find(entry.name); found != places.end())
      compare_entry(Comparison(differences, subject, entry.name), entry, after[found->second]);
}

void compare_settings(const Dump& before, const Dump& after, Differences& differences) {
  const std::map<std::string, std::string> old(before.settings.begin(), before.settings.end());
  const std::map<std::string, std::string> now(after.settings.begin(), after.settings.end());
  for (const auto& [key, value] : old)
    if (!now.contains(key)) differences.push_back({"setting", key, "removed", value, ""});
  for (const auto& [key, value] : now) {
    const auto found = old.find(key);
    if (found == old.end()) {
      differences.push_back({"setting", key, "added", "", value});
    } else if (found->second != value) {
      differences.push_back({"setting", key, "changed", found->second, value});
    }
  }
}

std::string line_of(const DumpDifference& difference) {
  if (difference.before.empty() && difference.after.empty()) return difference.name;
  if (difference.before.empty()) return fmt::format("{}: + {}", difference.name, difference.after);
  if (difference.after.empty()) return fmt::format("{}: - {}", difference.name, difference.before);
  return fmt::format("{}: {} -> {}", difference.name, difference.before, difference.after);
}

}  // namespace

Differences compare(const Dump& before, const Dump& after) {
  Differences differences;
  compare_settings(before, after, differences);
  Comparison(differences, "arena", "arena").field("resized", before.arena_bytes, after.arena_bytes);
  compare_lists("buffer", before.buffers, after.buffers, differences);
  compare_lists("segment", before.segments, after.segments, differences);
  compare_order("segment", before.segments, after.segments, differences);
  compare_lists("run", before.runs, after.runs, differences);
  compare_order("run", before.runs, after.runs, differences);
  return differences;
}

std::string to_text(const Differences& differences, std::size_t most) {
  std::vector<std::pair<std::string, std::vector<const DumpDifference*>>> groups;
  std::unordered_map<std::string, std::size_t> places;
  for (const DumpDifference& difference : differences) {
    const std::string title = difference.subject + " " + difference.change;
    const auto [place, is_new] = places.emplace(title, groups.size());
    if (is_new) groups.push_back({title, {}});
    groups[place->second].second.push_back(&difference);
  }
  std::string text;
  for (const auto& [title, members] : groups) {
    text += fmt::format("{} ({}):\n", title, members.size());
    for (std::size_t i = 0; i < std::min(most, members.size()); ++i)
      text += "  " + line_of(*members[i]) + '\n';
    if (members.size() > most) text += fmt::format("  and {} more\n", members.size() - most);
  }
  return text;
}

}  // namespace encore::graph
