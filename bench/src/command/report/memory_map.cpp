// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "../numbers.hpp"
#include "chart.hpp"
#include "figures.hpp"
#include "html.hpp"

namespace encore::command {

namespace {

/// More rectangles than a browser draws at ease; the largest are shown then.
constexpr std::size_t most_buffers = 8000;
constexpr double least_width_of_label = 7, least_height_of_label = 6;  ///< percent of the drawing

std::string bytes_of(std::size_t bytes) { return bytes_text(static_cast<double>(bytes)); }

/// Bytes in use while each segment runs.
std::vector<double> alive(const ReportProgram& program) {
  std::vector<double> bytes(program.segments.size(), 0);
  for (const ReportBuffer& buffer : program.buffers)
    for (std::size_t i = buffer.first; i <= buffer.last && i < bytes.size(); ++i)
      bytes[i] += static_cast<double>(buffer.bytes);
  return bytes;
}

std::string alive_plot(const ReportProgram& program, const Axis& x) {
  const std::vector<double> bytes = alive(program);
  const auto arena = static_cast<double>(program.arena_bytes);
  const double peak = *std::ranges::max_element(bytes);
  const Axis y = Axis::exact(0, arena, 0);
  std::string path = "M0 1000";
  for (std::size_t i = 0; i < bytes.size(); ++i)
    path += fmt::format("L{:.1f} {:.1f}H{:.1f}", x.place(static_cast<double>(i)), 1000 - y.place(bytes[i]),
                        x.place(static_cast<double>(i + 1)));
  const Plot plot{.attributes = "id=\"alive\"",
                  .label = fmt::format("bytes alive by segment, at most {}", bytes_text(peak)),
                  .drawing = fmt::format("<path class=\"alive\" d=\"{}V1000Z\"/>", path),
                  .overlay = {},
                  .y_title = fmt::format("alive, at most {}", bytes_text(peak)),
                  .x_title = {}};
  return plot_html(plot, Axis::exact(0, static_cast<double>(program.segments.size()), 0), y, TickStyle::none);
}

/// Stretches of segments that are alike, as rectangles of a strip, with labels where there is room.
struct Stretch {
  std::size_t first, end;
  std::string kind, label, tip;
};

std::string strip(const std::vector<Stretch>& stretches, const Axis& x, double top, double height,
                  std::string& overlay) {
  std::string drawing;
  for (const Stretch& each : stretches) {
    const double left = x.place(static_cast<double>(each.first));
    const double width = x.place(static_cast<double>(each.end)) - left;
    drawing += fmt::format(
        "<rect class=\"{}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"><title>{}</title>"
        "</rect>",
        escaped(each.kind), left, top, width, height, escaped(each.tip));
    if (width > 80)
      overlay += fmt::format(
          "<span class=\"on-strip {}\" style=\"left:{:.2f}%;width:{:.2f}%;top:{:.1f}%\">{}</span>",
          escaped(each.kind), left / 10, width / 10, (top + height / 2) / 10, escaped(each.label));
  }
  return drawing;
}

std::vector<Stretch> phases(const ReportProgram& program) {
  std::vector<Stretch> result;
  for (std::size_t i = 0; i < program.segments.size(); ++i) {
    const std::string& phase = program.segments[i].phase;
    if (result.empty() || result.back().label != phase)
      result.push_back({i, i + 1, "phase-" + phase, phase, phase});
    else
      result.back().end = i + 1;
  }
  return result;
}

std::vector<Stretch> runs(const ReportProgram& program) {
  std::vector<Stretch> result;
  for (const ReportRun& run : program.runs) {
    const char* const state = run.captured ? "captured" : "eager";
    result.push_back({run.first, run.end, fmt::format("run-{}", state), run.captured ? run.name : "eager",
                      fmt::format("{}: {}, {} segments", run.name, state, run.end - run.first)});
  }
  return result;
}

std::string map_plot(const ReportProgram& program, const Axis& x) {
  std::vector<const ReportBuffer*> shown;
  for (const ReportBuffer& buffer : program.buffers) shown.push_back(&buffer);
  std::ranges::stable_sort(shown, std::ranges::greater(), [](const ReportBuffer* b) { return b->bytes; });
  if (shown.size() > most_buffers) shown.resize(most_buffers);
  const auto arena = static_cast<double>(program.arena_bytes);
  const Axis y = Axis::bytes(arena, 6);
  Plot plot{.attributes = "id=\"map\"",
            .label = fmt::format("{} buffers in an arena of {} over {} segments", program.buffers.size(),
                                 bytes_text(arena), program.segments.size()),
            .drawing = {},
            .overlay = {},
            .y_title = "place in the arena",
            .x_title = {}};
  for (const ReportBuffer* buffer : shown) {
    const double left = x.place(static_cast<double>(buffer->first));
    const double width = x.place(static_cast<double>(buffer->last + 1)) - left;
    const double bottom = 1000 * static_cast<double>(buffer->offset) / arena;
    const double height = 1000 * static_cast<double>(buffer->bytes) / arena;
    plot.drawing += fmt::format(
        "<rect class=\"m-{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"><title>{}: {} at "
        "{}; from "
        "{} to {}</title></rect>",
        escaped(buffer->module), left, 1000 - bottom - height, width, height, escaped(buffer->name),
        bytes_of(buffer->bytes), bytes_of(buffer->offset), escaped(program.segments[buffer->first].name),
        escaped(program.segments[buffer->last].name));
    if (width / 10 > least_width_of_label && height / 10 > least_height_of_label)
      plot.overlay += fmt::format(
          "<span class=\"on-map\" "
          "style=\"left:{:.2f}%;width:{:.2f}%;bottom:{:.2f}%;height:{:.2f}%\">{}</span>",
          left / 10, width / 10, bottom / 10, height / 10, escaped(buffer->name));
  }
  return plot_html(plot, Axis::exact(0, static_cast<double>(program.segments.size()), 0), y,
                   TickStyle::bytes);
}

std::string strips_plot(const ReportProgram& program, const Axis& x) {
  Plot plot{.attributes = "id=\"strips\"",
            .label = "phases of the step, and which segments are captured",
            .drawing = {},
            .overlay = {},
            .y_title = {},
            .x_title = fmt::format("segments of a step, in order: 0 to {}", program.segments.size() - 1)};
  plot.drawing =
      strip(phases(program), x, 0, 460, plot.overlay) + strip(runs(program), x, 540, 460, plot.overlay);
  return plot_html(plot, Axis::exact(0, static_cast<double>(program.segments.size()), 0),
                   Axis::exact(0, 1, 0), TickStyle::none);
}

std::string module_legend(const ReportProgram& program) {
  std::vector<std::string> modules;
  for (const ReportBuffer& buffer : program.buffers)
    if (std::ranges::find(modules, buffer.module) == modules.end()) modules.push_back(buffer.module);
  std::string legend;
  for (const std::string& module : modules)
    legend += fmt::format("<li><i class=\"m-{0}\"></i>{0}</li>", escaped(module));
  return fmt::format("<ul class=\"legend\">{}</ul>", legend);
}

std::string uses_bar(const ReportProgram& program) {
  double total = 0;
  for (const ReportMemory& use : program.memory) total += static_cast<double>(use.bytes);
  if (total <= 0) return {};
  std::vector<ReportMemory> uses = program.memory;
  std::ranges::stable_sort(uses, std::ranges::greater(), &ReportMemory::bytes);
  std::string bar, legend;
  int number = 0;
  for (const ReportMemory& use : uses) {
    if (use.bytes == 0) continue;
    const int color = std::min(number++, 7);
    bar += fmt::format("<i class=\"u{}\" style=\"flex-grow:{}\" title=\"{}: {}\"></i>", color, use.bytes,
                       escaped(use.use), bytes_of(use.bytes));
    legend +=
        fmt::format("<li><i class=\"u{}\"></i>{} {}</li>", color, escaped(use.use),
                    data_element(static_cast<double>(use.bytes), bytes_of(use.bytes), "bytes of " + use.use));
  }
  return fmt::format(
      "<h3>All memory: {}</h3><div class=\"uses\" role=\"img\" aria-label=\"memory by use\">{}</div><ul "
      "class=\"legend\">{}</ul>",
      data_element(total, bytes_text(total), "memory_bytes"), bar, legend);
}

}  // namespace

std::string memory_section(const Report& report) {
  if (!report.program) {
    if (report.no_program.empty()) return {};
    return fmt::format(
        "<section id=\"memory\"><h2>Memory and graph</h2><p class=\"missing\">{}</p></section>\n",
        escaped(report.no_program));
  }
  const ReportProgram& program = *report.program;
  if (program.segments.empty()) return {};
  std::string text = "<section id=\"memory\"><h2>Memory</h2>" + uses_bar(program);
  if (!program.buffers.empty() && program.arena_bytes > 0) {
    double whole = 0;
    for (const ReportBuffer& buffer : program.buffers) whole += static_cast<double>(buffer.bytes);
    const std::vector<double> bytes = alive(program);
    const double peak = *std::ranges::max_element(bytes);
    const auto arena = static_cast<double>(program.arena_bytes);
    const Axis x = Axis::exact(0, static_cast<double>(program.segments.size()), 1);
    text += fmt::format(
        "<h3>The arena over a step: {}</h3><p>{} buffers of {} in all share {}, because most are not alive "
        "for long; at "
        "most {} are at once, so {:.1f} % of the arena is lost between them.</p>{}{}{}{}",
        data_element(arena, bytes_text(arena), "arena_bytes"),
        data_element(static_cast<double>(program.buffers.size()),
                     grouped_text(static_cast<double>(program.buffers.size())), "buffers"),
        bytes_text(whole), bytes_text(arena), data_element(peak, bytes_text(peak), "alive_bytes"),
        100 * (1 - peak / arena), module_legend(program), alive_plot(program, x), map_plot(program, x),
        strips_plot(program, x));
    if (program.buffers.size() > most_buffers)
      text += fmt::format("<p class=\"missing\">The {} largest are drawn.</p>", most_buffers);
  }
  return text + "</section>\n";
}

}  // namespace encore::command
