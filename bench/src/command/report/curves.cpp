// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "chart.hpp"
#include "figures.hpp"
#include "html.hpp"

namespace encore::command {

namespace {

constexpr std::size_t most_points = 1500;
constexpr std::size_t most_dots = 4000;

/// Columns of a run, or means of neighbouring steps of it with their extremes.
struct Curve {
  std::vector<double> at, mean, low, high;
};

Curve curve_of(const std::vector<double>& at, const std::vector<double>& values) {
  Curve curve;
  const std::size_t bucket = (values.size() + most_points - 1) / most_points;
  for (std::size_t first = 0; first < values.size(); first += bucket) {
    const std::size_t end = std::min(first + bucket, values.size());
    double sum = 0, low = std::numeric_limits<double>::infinity(), high = -low;
    std::size_t count = 0;
    for (std::size_t i = first; i < end; ++i) {
      if (!std::isfinite(values[i])) continue;
      sum += values[i];
      low = std::min(low, values[i]);
      high = std::max(high, values[i]);
      ++count;
    }
    curve.at.push_back(at[(first + end - 1) / 2]);
    curve.mean.push_back(count > 0 ? sum / static_cast<double>(count)
                                   : std::numeric_limits<double>::quiet_NaN());
    curve.low.push_back(low);
    curve.high.push_back(high);
  }
  return curve;
}

/// Mean of the neighbours, in all about a twenty-fifth of the run; as many after as before, or a steep beginning would be
/// flattened.
std::vector<double> smoothed(const std::vector<double>& values) {
  const std::size_t reach = values.size() / 50;
  std::vector<double> result;
  for (std::size_t middle = 0; middle < values.size(); ++middle) {
    const std::size_t near = std::min({reach, middle, values.size() - 1 - middle});
    double sum = 0, count = 0;
    for (std::size_t i = middle - near; i <= middle + near; ++i)
      if (std::isfinite(values[i])) {
        sum += values[i];
        ++count;
      }
    result.push_back(count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN());
  }
  return result;
}

std::pair<double, double> range_of(const std::vector<double>& values) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : values)
    if (std::isfinite(value)) {
      low = std::min(low, value);
      high = std::max(high, value);
    }
  return {low, high};
}

std::string x_attributes(const char* series, const Axis& x) {
  return fmt::format("data-series=\"{}\" data-low=\"{}\" data-high=\"{}\"", series, x.low(), x.high());
}

Axis step_axis(const std::vector<double>& at) { return Axis::exact(at.front(), at.back(), 5); }

std::string legend_entry(const char* mark, const std::string& text) {
  return fmt::format("<li><i class=\"{}\"></i>{}</li>", mark, text);
}

}  // namespace

std::vector<ReportStep> thinned(const std::vector<ReportStep>& steps, std::size_t most) {
  if (steps.size() <= most) return steps;
  const double stride = static_cast<double>(steps.size() - 1) / static_cast<double>(most - 1);
  std::vector<ReportStep> result;
  double next = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool rare = steps[i].mode != graph::StepMode::replay && result.size() < 2 * most;
    const bool due = static_cast<double>(i) >= next - 0.5;
    if (due) next += stride;
    if (due || rare) result.push_back(steps[i]);
  }
  return result;
}

double median_milliseconds(const std::vector<ReportStep>& steps, graph::StepMode mode) {
  std::vector<double> times;
  for (const ReportStep& step : steps)
    if (step.mode == mode && std::isfinite(step.milliseconds)) times.push_back(step.milliseconds);
  return graph::median(std::move(times));
}

std::string loss_section(const Report& report) {
  if (report.steps.empty()) return {};
  std::vector<double> at, losses, at_evaluation, evaluated;
  for (const ReportStep& step : report.steps) {
    at.push_back(static_cast<double>(step.step));
    losses.push_back(step.loss);
  }
  for (const ReportEvaluation& evaluation : report.evaluations) {
    at_evaluation.push_back(static_cast<double>(evaluation.step));
    evaluated.push_back(evaluation.loss);
  }
  std::vector<double> all = losses;
  all.insert(all.end(), evaluated.begin(), evaluated.end());
  const auto [low, high] = range_of(all);
  const Axis y = Axis::rounded(low, high, 5);
  std::vector<double> all_at = at;
  if (!at_evaluation.empty() && at_evaluation.front() < at.front())
    all_at.insert(all_at.begin(), at_evaluation.front());
  const Axis x = step_axis(all_at);
  const Curve curve = curve_of(at, losses);

  Plot plot{
      .attributes = x_attributes("loss", x),
      .label = fmt::format("training loss from {} at step {} to {} at step {}", number_text(losses.front()),
                           report.steps.front().step, number_text(losses.back()), report.steps.back().step),
      .drawing = {},
      .overlay = {},
      .y_title = "nats a token",
      .x_title = "step"};
  if (curve.at.size() < losses.size())
    plot.drawing =
        fmt::format("<path class=\"band\" d=\"{}\"/>", band_path(x, y, curve.at, curve.low, curve.high));
  else
    plot.drawing = fmt::format("<path class=\"raw\" d=\"{}\"/>", line_path(x, y, at, losses));
  plot.drawing +=
      fmt::format("<path class=\"mean\" d=\"{}\"/>", line_path(x, y, curve.at, smoothed(curve.mean)));
  std::string legend = legend_entry("raw", "each step") + legend_entry("mean", "mean of neighbours");
  if (!evaluated.empty()) {
    plot.drawing +=
        fmt::format("<path class=\"evaluation\" d=\"{}\"/><path class=\"evaluation dots\" d=\"{}\"/>",
                    line_path(x, y, at_evaluation, evaluated), dots_path(x, y, at_evaluation, evaluated));
    legend += legend_entry(
        "evaluation",
        fmt::format("evaluation, {} at the end",
                    data_element(evaluated.back(), number_text(evaluated.back()), "evaluation_loss")));
  }
  return fmt::format("<section id=\"loss\"><h2>Loss</h2><ul class=\"legend\">{}</ul>{}</section>\n", legend,
                     plot_html(plot, x, y));
}

std::string step_time_section(const Report& report) {
  if (report.steps.empty()) return {};
  using enum graph::StepMode;
  const std::vector<ReportStep> shown = thinned(report.steps, most_dots);
  std::vector<double> times, at;
  for (const ReportStep& step : report.steps) {
    times.push_back(step.milliseconds);
    at.push_back(static_cast<double>(step.step));
  }
  const auto [low, high] = range_of(times);
  const bool wide = low > 0 && high / low > 8;
  const Axis y = wide ? Axis::logarithmic(low, high) : Axis::rounded(0, high, 4);
  const Axis x = step_axis(at);
  Plot plot{.attributes = x_attributes("time", x),
            .label = fmt::format("time of {} steps, from {} to {} ms", times.size(), number_text(low),
                                 number_text(high)),
            .drawing = {},
            .overlay = {},
            .y_title = wide ? "ms, logarithmic" : "ms",
            .x_title = "step"};
  std::string legend;
  for (const auto& [mode, word] : std::array<std::pair<graph::StepMode, const char*>, 3>{
           {{replay, "replayed"}, {eager, "eager"}, {capture, "captured"}}}) {
    std::vector<double> at_mode, of_mode;
    for (const ReportStep& step : shown)
      if (step.mode == mode) {
        at_mode.push_back(static_cast<double>(step.step));
        of_mode.push_back(step.milliseconds);
      }
    if (at_mode.empty()) continue;
    const std::string name(graph::name_of(mode));
    plot.drawing +=
        fmt::format("<path class=\"dots {}\" d=\"{}\"/>", name, dots_path(x, y, at_mode, of_mode));
    const auto count = std::ranges::count(report.steps, mode, &ReportStep::mode);
    const double median = median_milliseconds(report.steps, mode);
    if (mode != capture && count > 2)
      plot.drawing +=
          fmt::format("<path class=\"median {}\" d=\"M0 {:.1f}H1000\"/>", name, 1000 - y.place(median));
    legend += legend_entry(
        name.c_str(), fmt::format("{} {}, {} {} ms",
                                  data_element(static_cast<double>(count),
                                               grouped_text(static_cast<double>(count)), name + "_steps"),
                                  word, count == 1 ? "" : "median",
                                  data_element(median, number_text(median), "median_" + name + "_ms")));
  }
  return fmt::format("<section id=\"time\"><h2>Step time</h2><ul class=\"legend\">{}</ul>{}</section>\n",
                     legend, plot_html(plot, x, y));
}

}  // namespace encore::command
