// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chart.hpp"
#include "figures.hpp"
#include "html.hpp"

namespace encore::command {

namespace {

std::string factor_text(double value) { return fmt::format("{:.3f}", value); }

std::string vertical(const Axis& x, double value, const char* kind) {
  const double place = x.place(value);
  return fmt::format("<path class=\"{}\" d=\"M{:.1f} 0V1000\"/>", kind, place);
}

/// The interval on the line of speed-ups, with 1 and what is asked for.
std::string interval_plot(const ReportVerdict& verdict) {
  const graph::SpeedupInterval& speedup = *verdict.speedup;
  const double needed = 1 + verdict.threshold;
  const double low = std::min({speedup.lower, 1.0}), high = std::max({speedup.upper, needed});
  const double margin = std::max(0.02, 0.12 * (high - low));
  const Axis x = Axis::exact(std::max(0.0, low - margin), high + margin, 5);
  const Axis y = Axis::exact(0, 1, 0);
  const auto label = [&](double at, const char* kind, const std::string& text) {
    return fmt::format("<span class=\"mark {}\" style=\"left:{:.2f}%\">{}</span>", kind, x.place(at) / 10,
                       escaped(text));
  };
  Plot plot{.attributes = "id=\"interval\"",
            .label = fmt::format("speed-up {} with the interval {} to {}; asked for: {}",
                                 factor_text(speedup.speedup), factor_text(speedup.lower),
                                 factor_text(speedup.upper), factor_text(needed)),
            .drawing = vertical(x, 1, "one") + vertical(x, needed, "needed"),
            .overlay = label(1, "one", "as fast"),
            .y_title = {},
            .x_title = "times as fast as eager"};
  plot.drawing +=
      fmt::format("<path class=\"whisker\" d=\"M{0:.1f} 550H{1:.1f}M{0:.1f} 400V700M{1:.1f} 400V700\"/>",
                  x.place(speedup.lower), x.place(speedup.upper));
  plot.drawing += fmt::format("<path class=\"dots speedup\" d=\"M{:.1f} 550h0\"/>", x.place(speedup.speedup));
  if (x.place(needed) - x.place(1) > 120 || verdict.threshold == 0)
    plot.overlay += label(needed, "needed", "asked for");
  return plot_html(plot, x, y, TickStyle::none);
}

/// Each pair of blocks: eager and replayed beside each other.
std::string pairs_plot(const ReportVerdict& verdict) {
  const std::size_t pairs = verdict.blocks.eager.size();
  std::vector<double> at, all = verdict.blocks.eager;
  for (std::size_t i = 0; i < pairs; ++i) at.push_back(static_cast<double>(i + 1));
  all.insert(all.end(), verdict.blocks.replay.begin(), verdict.blocks.replay.end());
  const auto [low, high] = std::ranges::minmax(all);
  const bool wide = high / low > 8;
  const Axis x =
      Axis::exact(0.5, static_cast<double>(pairs) + 0.5, std::min<int>(10, static_cast<int>(pairs)));
  const Axis y = wide ? Axis::logarithmic(low, high) : Axis::rounded(0, high, 4);
  Plot plot{.attributes = "id=\"pairs\"",
            .label = fmt::format("step times of {} pairs of blocks, eager and replayed", pairs),
            .drawing = {},
            .overlay = {},
            .y_title = wide ? "ms a step, logarithmic" : "ms a step",
            .x_title = "pair of blocks"};
  for (std::size_t i = 0; i < pairs; ++i)
    plot.drawing += fmt::format(
        "<path class=\"pair\" d=\"M{0:.1f} {1:.1f}V{2:.1f}\"><title>pair {3}: eager {4} ms, "
        "replay {5} ms</title></path>",
        x.place(at[i]), 1000 - y.place(verdict.blocks.eager[i]), 1000 - y.place(verdict.blocks.replay[i]),
        i + 1, number_text(verdict.blocks.eager[i]), number_text(verdict.blocks.replay[i]));
  plot.drawing +=
      fmt::format("<path class=\"dots eager\" d=\"{}\"/><path class=\"dots replay\" d=\"{}\"/>",
                  dots_path(x, y, at, verdict.blocks.eager), dots_path(x, y, at, verdict.blocks.replay));
  return "<ul class=\"legend\"><li><i class=\"eager\"></i>eager</li><li><i "
         "class=\"replay\"></i>replayed</li></ul>" +
         plot_html(plot, x, y);
}

}  // namespace

std::string verdict_headline(const ReportVerdict& verdict) {
  if (verdict.steps == 0) return "Nothing could be replayed";
  if (verdict.decision == "keep") return "Keep the graphs";
  if (verdict.decision == "do not keep")
    return verdict.small_gain ? "Do not keep the graphs: the gain is small" : "Do not keep the graphs";
  if (verdict.decision == "different numbers") return "Do not keep the graphs: the numbers differ";
  return "Not enough evidence";
}

std::string verdict_words(const ReportVerdict& verdict) {
  if (verdict.steps == 0)
    return fmt::format("Eager and replayed steps cannot be compared: {}.", verdict.reason);
  std::string text;
  if (const auto& speedup = verdict.speedup)
    text = fmt::format(
        "A replayed step is {} times as fast as an eager one, with an interval of {} to {} that holds with "
        "{:.1f} % "
        "confidence, from {} pairs of blocks. ",
        factor_text(speedup->speedup), factor_text(speedup->lower), factor_text(speedup->upper),
        100 * speedup->confidence, verdict.blocks.eager.size());
  if (verdict.difference.empty())
    text +=
        fmt::format("The verdict is \xE2\x80\x9C{}\xE2\x80\x9D: {}. Over {} steps every bit is the same. ",
                    verdict.decision, verdict.reason, verdict.steps);
  else
    text += fmt::format("But the numbers differ: {}; the largest difference of a loss is {:g}. ",
                        verdict.difference, verdict.loss_difference);
  text += fmt::format("Capturing took {} ms once, ", number_text(verdict.capture_milliseconds));
  if (verdict.break_even_steps)
    text += fmt::format("which is paid for after {} steps.",
                        grouped_text(static_cast<double>(*verdict.break_even_steps)));
  else
    text += "which is never paid for.";
  return text;
}

std::string verdict_section(const Report& report) {
  if (!report.verdict) return {};
  const ReportVerdict& verdict = *report.verdict;
  const char* const kind = verdict.decision == "keep"                  ? "good"
                           : verdict.decision == "not enough evidence" ? "open"
                                                                       : "bad";
  std::string text = fmt::format(
      "<section id=\"verdict\" class=\"{}\"><h2>Verdict</h2><p class=\"headline\">{}</p><p>{}</p>", kind,
      escaped(verdict_headline(verdict)), escaped(verdict_words(verdict)));
  if (verdict.speedup) text += interval_plot(verdict);
  if (verdict.steps > 0) {
    text += "<dl class=\"facts\">";
    const auto fact = [&](const char* name, double value, const std::string& shown, const char* id) {
      text += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", name, data_element(value, shown, id));
    };
    fact("eager step", verdict.eager_milliseconds, number_text(verdict.eager_milliseconds) + " ms",
         "eager_ms");
    fact("replayed step", verdict.replay_milliseconds, number_text(verdict.replay_milliseconds) + " ms",
         "replay_ms");
    fact("kernels launched eagerly", static_cast<double>(verdict.eager_launches),
         grouped_text(static_cast<double>(verdict.eager_launches)), "eager_launches");
    fact("nodes of graphs", static_cast<double>(verdict.graph_nodes),
         grouped_text(static_cast<double>(verdict.graph_nodes)), "graph_nodes");
    if (verdict.speedup)
      fact("speed-up", verdict.speedup->speedup, factor_text(verdict.speedup->speedup), "speedup");
    text += "</dl>";
  }
  if (!verdict.blocks.eager.empty() && verdict.blocks.eager.size() == verdict.blocks.replay.size())
    text += "<h3>Pair by pair</h3>" + pairs_plot(verdict);
  return text + "</section>\n";
}

}  // namespace encore::command
