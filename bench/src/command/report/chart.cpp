// SPDX-License-Identifier: Apache-2.0
#include "chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "../numbers.hpp"
#include "html.hpp"

namespace encore::command {

namespace {

/// 1, 2 or 5 times a power of ten.
double round_step(double range, int ticks) {
  const double rough = range / std::max(1, ticks);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (rough <= factor * power * (1 + 1e-9)) return factor * power;
  return 10 * power;
}

/// A range that is not empty, and wide enough for ticks: between neighbouring numbers of double there is no room.
void widen(double& low, double& high) {
  constexpr double most = 1e300;
  if (!std::isfinite(low) || !std::isfinite(high) || std::abs(low) > most || std::abs(high) > most) {
    low = 0;
    high = 1;
  }
  if (high - low > 1e-12 * std::max(std::abs(low), std::abs(high))) return;
  const double margin = low == 0 ? 1 : std::abs(low) * 0.1;
  low -= margin;
  high += margin;
}

std::string coordinate(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

std::string tick_text(double value, TickStyle style) {
  if (style == TickStyle::bytes) return bytes_text(value);
  std::string text = std::abs(value) >= 1000 ? grouped_text(value) : fmt::format("{:g}", value);
  return text;
}

}  // namespace

Axis Axis::rounded(double low, double high, int ticks) {
  widen(low, high);
  Axis axis;
  const double step = round_step(high - low, ticks);
  const double first = std::floor(low / step + 1e-9);
  const double last = std::ceil(high / step - 1e-9);
  axis.low_ = first * step;
  axis.high_ = last * step;
  for (double tick = first; tick <= last; ++tick)
    axis.ticks_.push_back(tick * step + 0.0);  // 0 rather than -0
  return axis;
}

Axis Axis::exact(double low, double high, int ticks) {
  widen(low, high);
  Axis axis;
  axis.low_ = low;
  axis.high_ = high;
  if (ticks == 0) return axis;
  const double step = round_step(high - low, ticks);
  for (double tick = std::ceil(low / step - 1e-9); tick * step <= high * (1 + 1e-12); ++tick)
    axis.ticks_.push_back(tick * step + 0.0);
  return axis;
}

Axis Axis::bytes(double high, int ticks) {
  Axis axis;
  axis.high_ = high;
  double step = 1;
  while (step * ticks < high) step *= 2;
  for (double tick = 0; tick <= high; tick += step) axis.ticks_.push_back(tick);
  return axis;
}

Axis Axis::logarithmic(double low, double high) {
  widen(low, high);
  low = std::max(low, high * 1e-9);
  Axis axis;
  axis.logarithmic_ = true;
  axis.low_ = low / 1.2;
  axis.high_ = high * 1.2;
  const bool narrow = high / low < 50;
  for (double power = std::pow(10.0, std::floor(std::log10(axis.low_))); power <= axis.high_; power *= 10)
    for (const double factor : {1.0, 2.0, 5.0})
      if ((factor == 1 || narrow) && factor * power >= axis.low_ && factor * power <= axis.high_)
        axis.ticks_.push_back(factor * power);
  return axis;
}

double Axis::place(double value) const {
  const double share = logarithmic_ ? std::log(std::max(value, low_ * 1e-6) / low_) / std::log(high_ / low_)
                                    : (value - low_) / (high_ - low_);
  return 1000 * std::clamp(share, 0.0, 1.0);
}

std::string line_path(const Axis& x, const Axis& y, const std::vector<double>& at,
                      const std::vector<double>& values) {
  std::string path;
  bool on = false;
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (!std::isfinite(values[i])) {
      on = false;
      continue;
    }
    path += (on ? 'L' : 'M') + coordinate(x.place(at[i])) + ' ' + coordinate(1000 - y.place(values[i]));
    on = true;
  }
  return path;
}

std::string band_path(const Axis& x, const Axis& y, const std::vector<double>& at,
                      const std::vector<double>& low, const std::vector<double>& high) {
  std::vector<std::size_t> finite;
  for (std::size_t i = 0; i < at.size(); ++i)
    if (std::isfinite(low[i]) && std::isfinite(high[i])) finite.push_back(i);
  if (finite.empty()) return {};
  std::string path;
  const auto add = [&](std::size_t i, double value) {
    path += (path.empty() ? 'M' : 'L') + coordinate(x.place(at[i])) + ' ' + coordinate(1000 - y.place(value));
  };
  for (const std::size_t i : finite) add(i, high[i]);
  std::ranges::reverse(finite);
  for (const std::size_t i : finite) add(i, low[i]);
  return path + 'Z';
}

std::string dots_path(const Axis& x, const Axis& y, const std::vector<double>& at,
                      const std::vector<double>& values) {
  std::string path;
  for (std::size_t i = 0; i < at.size(); ++i)
    if (std::isfinite(values[i]))
      path += 'M' + coordinate(x.place(at[i])) + ' ' + coordinate(1000 - y.place(values[i])) + "h0";
  return path;
}

std::string plot_html(const Plot& plot, const Axis& x, const Axis& y, TickStyle y_ticks) {
  std::string grid, labels_y, labels_x;
  if (y_ticks != TickStyle::none)
    for (const double tick : y.ticks()) {
      grid += fmt::format("<path class=\"grid\" d=\"M0 {0}H1000\"/>", coordinate(1000 - y.place(tick)));
      labels_y += fmt::format("<span style=\"bottom:{:.2f}%\">{}</span>", y.place(tick) / 10,
                              escaped(tick_text(tick, y_ticks)));
    }
  for (const double tick : x.ticks()) {
    const double place = x.place(tick) / 10;
    const char* const side = place < 4 ? " class=\"first\"" : place > 96 ? " class=\"last\"" : "";
    labels_x += fmt::format("<span{} style=\"left:{:.2f}%\">{}</span>", side, place,
                            escaped(tick_text(tick, TickStyle::number)));
  }
  return fmt::format(
      "<div class=\"plot\" {}>{}<div class=\"y\" aria-hidden=\"true\">{}</div>"
      "<div class=\"area\"><svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" role=\"img\" "
      "aria-label=\"{}\">{}{}</svg>{}</div><div class=\"x\" aria-hidden=\"true\">{}</div>{}</div>\n",
      plot.attributes,
      plot.y_title.empty() ? "" : fmt::format("<p class=\"title-y\">{}</p>", escaped(plot.y_title)), labels_y,
      escaped(plot.label), grid, plot.drawing, plot.overlay, labels_x,
      plot.x_title.empty() ? "" : fmt::format("<p class=\"title-x\">{}</p>", escaped(plot.x_title)));
}

}  // namespace encore::command
