// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "figures.hpp"
#include "html.hpp"

namespace encore::command {

namespace {

/// Segments of one kind, or a single one.
struct Row {
  std::string name, module, reason, change;
  std::size_t count = 0, captured = 0, kernels = 0;
  double milliseconds = 0, floor = 0, nodes = 0;
  std::array<double, 3> floors{};  ///< by what bounds them

  void add(const ReportSegment& segment) {
    ++count;
    captured += segment.captured ? 1 : 0;
    kernels += segment.kernels;
    if (reason.empty()) reason = segment.reason;
    if (change.empty()) change = segment.change;
    if (!segment.time) return;
    milliseconds += segment.time->milliseconds;
    floor += segment.time->floor_milliseconds;
    nodes += segment.time->nodes;
    floors[static_cast<std::size_t>(segment.time->bound)] += segment.time->floor_milliseconds;
  }
  std::string_view bound() const {
    return graph::name_of(static_cast<graph::Bound>(std::ranges::max_element(floors) - floors.begin()));
  }
};

std::vector<Row> rows_of(const ReportProgram& program, std::string ReportSegment::*name) {
  std::vector<Row> rows;
  std::map<std::string, std::size_t> places;
  for (const ReportSegment& segment : program.segments) {
    const auto [place, is_new] = places.emplace(segment.*name, rows.size());
    if (is_new) {
      rows.emplace_back().name = segment.*name;
      rows.back().module = segment.module;
    }
    rows[place->second].add(segment);
  }
  return rows;
}

std::string state_cell(const Row& row) {
  const bool all = row.captured == row.count, none = row.captured == 0;
  std::string text = fmt::format("<span class=\"chip {}\">{}</span>", none ? "eager" : "captured",
                                 all    ? "captured"
                                 : none ? "eager"
                                        : fmt::format("{} of {} captured", row.captured, row.count));
  if (!row.reason.empty()) text += fmt::format(" <span class=\"reason\">{}</span>", escaped(row.reason));
  if (!row.change.empty())
    text += fmt::format(" <span class=\"reason\">Captured with <code>{}</code></span>", escaped(row.change));
  return text;
}

/// A bar of what was measured with a mark at the floor.
std::string bar_cell(double value, double floor, double longest, const std::string& module) {
  if (longest <= 0) return {};
  std::string bar = fmt::format("<div class=\"bar\"><i class=\"m-{}\" style=\"width:{:.2f}%\"></i>",
                                escaped(module), 100 * value / longest);
  if (floor > 0) bar += fmt::format("<b style=\"left:{:.2f}%\"></b>", std::min(100.0, 100 * floor / longest));
  return bar + "</div>";
}

std::string row_html(const Row& row, bool timed, double longest) {
  const std::string count =
      row.count > 1 ? fmt::format(" <span class=\"count\">\xC3\x97 {}</span>", row.count) : "";
  std::string text =
      fmt::format("<tr><th scope=\"row\"><i class=\"m-{}\"></i>{}{}</th><td data-label=\"runs\">{}</td>",
                  escaped(row.module), escaped(row.name), count, state_cell(row));
  const double nodes = timed ? row.nodes : static_cast<double>(row.kernels);
  text += fmt::format("<td class=\"number\" data-label=\"{}\">{}</td>", timed ? "nodes" : "kernels",
                      data_element(nodes, grouped_text(nodes), timed ? "segment_nodes" : "segment_kernels"));
  if (timed) {
    text += fmt::format(
        "<td class=\"number\" data-label=\"ms\">{}</td><td class=\"number\" data-label=\"floor\">{}</td>"
        "<td class=\"number\" data-label=\"times floor\">{}</td><td data-label=\"bound by\">{}</td>",
        data_element(row.milliseconds, number_text(row.milliseconds), "segment_ms"),
        data_element(row.floor, number_text(row.floor), "segment_floor_ms"),
        row.floor > 0 ? fmt::format("{:.2f}", row.milliseconds / row.floor) : "", row.bound());
  }
  return text +
         fmt::format("<td class=\"bar-cell\">{}</td></tr>\n",
                     bar_cell(timed ? row.milliseconds : nodes, timed ? row.floor : 0, longest, row.module));
}

std::string table(std::vector<Row> rows, bool timed, bool sorts, const char* what) {
  const auto length = [&](const Row& row) {
    return timed ? std::max(row.milliseconds, row.floor) : static_cast<double>(row.kernels);
  };
  double longest = 0;
  for (const Row& row : rows) longest = std::max(longest, length(row));
  if (sorts && timed) std::ranges::stable_sort(rows, std::ranges::greater(), &Row::milliseconds);
  std::string text = fmt::format(
      "<table class=\"segments\"><thead><tr><th>{}</th><th>runs</th><th "
      "class=\"number\">{}</th>{}<th></th></tr></thead>"
      "<tbody>\n",
      what, timed ? "nodes" : "kernels",
      timed ? "<th class=\"number\">ms</th><th class=\"number\">floor</th><th class=\"number\">times "
              "floor</th><th>bound "
              "by</th>"
            : "");
  for (const Row& row : rows) text += row_html(row, timed, longest);
  return text + "</tbody></table>";
}

std::string profile_words(const graph::StepProfile& profile) {
  std::string text = fmt::format(
      "Each segment was timed by replaying it alone: {} ms in all, against a floor of {} ms from what was "
      "measured on this "
      "device. The bar is the time, its mark the floor. ",
      data_element(profile.milliseconds(), number_text(profile.milliseconds()), "sum_ms"),
      data_element(profile.floor_milliseconds(), number_text(profile.floor_milliseconds()), "sum_floor_ms"));
  if (profile.replay_milliseconds)
    text += fmt::format("The whole step takes {} ms by replay of {} nodes.",
                        data_element(*profile.replay_milliseconds, number_text(*profile.replay_milliseconds),
                                     "replayed_step_ms"),
                        profile.replay_nodes);
  return text;
}

}  // namespace

std::string segments_section(const Report& report) {
  if (!report.program || report.program->segments.empty()) return {};
  const ReportProgram& program = *report.program;
  const bool timed =
      std::ranges::any_of(program.segments, [](const ReportSegment& s) { return s.time.has_value(); });
  const auto captured = std::ranges::count_if(program.segments, &ReportSegment::captured);
  const auto graphs = std::ranges::count_if(program.runs, &ReportRun::captured);
  std::string text = fmt::format(
      "<section id=\"graph\"><h2>Graph by segment</h2><p>{} of {} segments are captured, in {} {}. {}</p>",
      data_element(static_cast<double>(captured), std::to_string(captured), "captured_segments"),
      data_element(static_cast<double>(program.segments.size()), std::to_string(program.segments.size()),
                   "segments"),
      data_element(static_cast<double>(graphs), std::to_string(graphs), "graphs"),
      graphs == 1 ? "graph" : "graphs",
      timed && report.profile ? profile_words(*report.profile)
                              : "The bars are numbers of kernels; with a profile they are times.");
  text += table(rows_of(program, &ReportSegment::kind), timed, true, "kind");
  text += fmt::format("<details><summary>All {} segments, in order</summary>{}</details>",
                      program.segments.size(),
                      table(rows_of(program, &ReportSegment::name), timed, false, "segment"));
  return text + "</section>\n";
}

}  // namespace encore::command
