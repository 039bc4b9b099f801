// SPDX-License-Identifier: Apache-2.0
#include "profile_report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace encore::command {

namespace {

using Json = nlohmann::ordered_json;

/// Rows in the making, by name in the order in which the names first come.
class Rows {
 public:
  ProfileRow& row(const std::string& name) {
    const auto [at, is_new] = places_.emplace(name, rows_.size());
    if (is_new) {
      rows_.emplace_back().name = name;
      floors_.emplace_back();
    }
    last_ = at->second;
    return rows_[last_];
  }
  /// Of the row that was asked for last.
  void add_floor(double milliseconds, graph::Bound bound) {
    rows_[last_].floor_milliseconds += milliseconds;
    floors_[last_][static_cast<std::size_t>(bound)] += milliseconds;
  }
  std::vector<ProfileRow> finish() {
    for (std::size_t i = 0; i < rows_.size(); ++i)
      rows_[i].bound = static_cast<graph::Bound>(std::ranges::max_element(floors_[i]) - floors_[i].begin());
    std::ranges::stable_sort(rows_, std::ranges::greater(), &ProfileRow::gap);
    return std::move(rows_);
  }

 private:
  std::vector<ProfileRow> rows_;
  std::vector<std::array<double, 3>> floors_;  ///< by what bounds them
  std::map<std::string, std::size_t> places_;
  std::size_t last_ = 0;
};

void add_launches(Rows& rows, const graph::SegmentProfile& segment, const graph::MachineRates& rates) {
  const auto launches = static_cast<double>(segment.launches.size());
  for (const graph::LaunchProfile& launch : segment.launches) {
    ProfileRow& row = rows.row(launch.label);
    ++row.count;
    row.nodes += segment.nodes / launches;
    row.flops += launch.flops;
    row.bytes += launch.bytes;
    row.milliseconds += segment.floor_milliseconds > 0
                            ? segment.milliseconds * launch.floor_milliseconds / segment.floor_milliseconds
                            : segment.milliseconds / launches;
    graph::SegmentProfile alone{.nodes = segment.nodes / launches, .launches = {launch}};
    graph::set_floor(alone, rates);
    rows.add_floor(launch.floor_milliseconds, alone.bound);
  }
}

/// `790 T`, `4.12 T`.
std::string scaled(double value) {
  constexpr std::array<const char*, 6> prefixes{"", "k", "M", "G", "T", "P"};
  std::size_t power = 0;
  while (value >= 1000 && power + 1 < prefixes.size()) {
    value /= 1000;
    ++power;
  }
  return fmt::format("{:.3g} {}", value, prefixes[power]);
}

std::string ratio_text(const ProfileRow& row) {
  return row.floor_milliseconds > 0 ? fmt::format("{:.2f}", row.ratio()) : "-";
}

ProfileRow sum_of(const graph::StepProfile& profile) {
  ProfileRow sum;
  sum.name = "sum";
  for (const graph::SegmentProfile& segment : profile.segments) {
    ++sum.count;
    sum.milliseconds += segment.milliseconds;
    sum.floor_milliseconds += segment.floor_milliseconds;
    sum.nodes += segment.nodes;
    sum.flops += segment.flops;
    sum.bytes += segment.bytes;
  }
  return sum;
}

double share(const ProfileRow& row, const ProfileRow& sum) {
  return sum.milliseconds > 0 ? row.milliseconds / sum.milliseconds : 0;
}

std::string row_text(const ProfileRow& row, const ProfileRow& sum, std::string_view bound,
                     std::size_t width) {
  const std::string name = row.count > 1 ? fmt::format("{} x {}", row.name, row.count) : row.name;
  return fmt::format("  {:<{}} {:>10.4f} {:>10.4f} {:>7} {:>6.1f} % {:>10.4f}  {}\n", name, width,
                     row.milliseconds, row.floor_milliseconds, ratio_text(row), 100 * share(row, sum),
                     row.gap(), bound);
}

Json row_json(const ProfileRow& row) {
  return {{"name", row.name},
          {"count", row.count},
          {"ms", row.milliseconds},
          {"floor_ms", row.floor_milliseconds},
          {"ratio", row.floor_milliseconds > 0 ? Json(row.ratio()) : Json()},
          {"gap_ms", row.gap()},
          {"nodes", row.nodes},
          {"flops", row.flops},
          {"bytes", row.bytes}};
}

}  // namespace

std::string kind_of(std::string_view name) {
  std::string kind;
  while (!name.empty()) {
    std::string_view part = name.substr(0, name.find('/'));
    name.remove_prefix(std::min(part.size() + 1, name.size()));
    const std::size_t dot = part.find('.');
    const bool numbered = dot != std::string_view::npos && dot + 1 < part.size() &&
                          part.find_first_not_of("0123456789", dot + 1) == std::string_view::npos;
    if (numbered && !name.empty()) continue;
    if (numbered) part = part.substr(0, dot);
    kind += (kind.empty() ? "" : " ") + std::string(part);
  }
  return kind;
}

std::vector<ProfileRow> profile_rows(const graph::StepProfile& profile, ProfileGrouping grouping) {
  Rows rows;
  for (const graph::SegmentProfile& segment : profile.segments) {
    if (grouping == ProfileGrouping::label) {
      add_launches(rows, segment, profile.rates);
      continue;
    }
    ProfileRow& row = rows.row(grouping == ProfileGrouping::segment ? segment.name : kind_of(segment.name));
    ++row.count;
    row.milliseconds += segment.milliseconds;
    row.nodes += segment.nodes;
    row.flops += segment.flops;
    row.bytes += segment.bytes;
    if (row.eager_because.empty()) row.eager_because = segment.eager_because;
    rows.add_floor(segment.floor_milliseconds, segment.bound);
  }
  return rows.finish();
}

std::string profile_text(const graph::StepProfile& profile, ProfileGrouping grouping,
                         std::string_view precision) {
  const std::vector<ProfileRow> rows = profile_rows(profile, grouping);
  const ProfileRow sum = sum_of(profile);
  std::size_t width = 24;
  for (const ProfileRow& row : rows) width = std::max(width, row.name.size() + 6);
  std::string text = fmt::format("  {:<{}} {:>10} {:>10} {:>7} {:>8} {:>10}  {}\n",
                                 grouping == ProfileGrouping::label ? "kernels" : "segments", width, "ms",
                                 "floor ms", "ratio", "share", "gap ms", "bound by");
  for (const ProfileRow& row : rows) text += row_text(row, sum, graph::name_of(row.bound), width);
  text += row_text(sum, sum, "", width);
  if (grouping == ProfileGrouping::label)
    text += "  (a segment's time is shared among its kernels in proportion to their floors)\n";
  for (const ProfileRow& row : rows)
    if (!row.eager_because.empty())
      text += fmt::format("  {}: timed eagerly: {}\n", row.name, row.eager_because);
  if (profile.replay_milliseconds) {
    const double replay = *profile.replay_milliseconds;
    text += fmt::format("\nthe whole step: {:.4f} ms by replay of {} nodes, {:.4f} ms {} than the sum\n",
                        replay, profile.replay_nodes, std::abs(sum.milliseconds - replay),
                        replay <= sum.milliseconds ? "less" : "more");
    if (!profile.replay_refusal.empty())
      text += fmt::format("not all of it is a replay: {}\n", profile.replay_refusal);
  }
  const graph::MachineRates& rates = profile.rates;
  return text + fmt::format(
                    "rates measured here: {}FLOP/s ({} matrix product), {}B/s (copy, read and "
                    "written), {:.3g} us a node\n",
                    scaled(rates.flops_per_second), precision, scaled(rates.bytes_per_second),
                    1e6 * rates.seconds_per_node);
}

Json profile_json(const graph::StepProfile& profile, ProfileGrouping grouping) {
  const ProfileRow sum = sum_of(profile);
  Json json{{"by", name_of(grouping)},
            {"rates",
             {{"flops_per_second", profile.rates.flops_per_second},
              {"bytes_per_second", profile.rates.bytes_per_second},
              {"seconds_per_node", profile.rates.seconds_per_node}}},
            {"rows", Json::array()}};
  for (const ProfileRow& row : profile_rows(profile, grouping)) {
    Json entry = row_json(row);
    entry["share"] = share(row, sum);
    entry["bound"] = graph::name_of(row.bound);
    if (!row.eager_because.empty()) entry["eager_because"] = row.eager_because;
    json["rows"].push_back(std::move(entry));
  }
  json["sum"] = row_json(sum);
  if (profile.replay_milliseconds) {
    json["replay"] = {{"ms", *profile.replay_milliseconds},
                      {"nodes", profile.replay_nodes},
                      {"difference_ms", sum.milliseconds - *profile.replay_milliseconds}};
    if (!profile.replay_refusal.empty()) json["replay"]["refusal"] = profile.replay_refusal;
  }
  return json;
}

}  // namespace encore::command
