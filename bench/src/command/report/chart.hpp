// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace encore::command {

/// Places numbers on a line from 0 to 1000, the units of every drawing. Drawings are stretched to the page's width, with
/// lines and dots that keep their thickness; what stands beside them is text of the page and is not stretched.
class Axis {
 public:
  /// Around [low, high], with the ends at the first and last of about `ticks` round numbers.
  static Axis rounded(double low, double high, int ticks);
  /// From `low` to `high` exactly, with about `ticks` round numbers between them, or none.
  static Axis exact(double low, double high, int ticks);
  /// From 0 to `high` exactly, with at most `ticks` steps of a power of two.
  static Axis bytes(double high, int ticks);
  /// Around [low, high], both above 0, in powers of ten.
  static Axis logarithmic(double low, double high);

  double place(double value) const;
  double low() const { return low_; }
  double high() const { return high_; }
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  double low_ = 0;
  double high_ = 1;
  bool logarithmic_ = false;
  std::vector<double> ticks_;
};

/// `M12 3.5L14 2`: a line through the points, broken where one is not finite. The y axis points up.
std::string line_path(const Axis& x, const Axis& y, const std::vector<double>& at,
                      const std::vector<double>& values);
/// The area between two lines.
std::string band_path(const Axis& x, const Axis& y, const std::vector<double>& at,
                      const std::vector<double>& low, const std::vector<double>& high);
/// A dot for each finite point: `M12 3.5h0` draws one with round ends of lines.
std::string dots_path(const Axis& x, const Axis& y, const std::vector<double>& at,
                      const std::vector<double>& values);

/// A drawing between its axes. `drawing` is SVG, `overlay` HTML over it, `attributes` those of the outer element.
struct Plot {
  std::string attributes;
  std::string label;  ///< what the drawing shows, for those who do not see it
  std::string drawing;
  std::string overlay;
  std::string y_title;
  std::string x_title;
};
/// Tick labels by number_text, or in bytes.
enum class TickStyle { number, bytes, none };
std::string plot_html(const Plot& plot, const Axis& x, const Axis& y, TickStyle y_ticks = TickStyle::number);

}  // namespace encore::command
