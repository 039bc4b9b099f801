// SPDX-License-Identifier: Apache-2.0
#include "numbers.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

namespace encore::command {

namespace {

template <std::size_t Count>
std::string scaled(double value, double base, const std::array<std::string_view, Count>& units) {
  std::size_t unit = 0;
  while (unit + 1 < Count && value >= base) {
    value /= base;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f}{}", value, units[0]);
  return fmt::format("{:.{}f}{}", value, value < 100 ? 1 : 0, units[unit]);
}

}  // namespace

std::string bytes_text(double bytes) {
  return scaled(bytes, 1024, std::array<std::string_view, 5>{" bytes", " KiB", " MiB", " GiB", " TiB"});
}

std::string count_text(std::int64_t count) {
  return scaled(static_cast<double>(count), 1000,
                std::array<std::string_view, 4>{"", " thousand", " million", " billion"});
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace encore::command
