// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/nearest_name.hpp>

#include <algorithm>
#include <vector>

namespace encore::model {

std::size_t edit_distance(std::string_view left, std::string_view right) {
  const std::size_t columns = right.size() + 1;
  std::vector<std::size_t> before_last(columns), last(columns), current(columns);
  for (std::size_t j = 0; j < columns; ++j) last[j] = j;
  for (std::size_t i = 1; i <= left.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j < columns; ++j) {
      const std::size_t replaced = last[j - 1] + (left[i - 1] == right[j - 1] ? 0 : 1);
      current[j] = std::min({replaced, last[j] + 1, current[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1];
      if (swapped) current[j] = std::min(current[j], before_last[j - 2] + 1);
    }
    std::swap(before_last, last);
    std::swap(last, current);
  }
  return last[right.size()];
}

std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  // A name far longer than any candidate is not a typing error, and comparing it would cost its whole length.
  constexpr std::size_t longest = 100;
  if (name.empty() || name.size() > longest) return {};
  const std::size_t allowed = std::max<std::size_t>(1, name.size() / 3);
  std::string_view nearest;
  std::size_t least = allowed + 1;
  for (const std::string_view candidate : candidates) {
    std::size_t distance = edit_distance(name, candidate);
    const std::size_t dot = candidate.rfind('.');
    if (dot != std::string_view::npos && name.find('.') == std::string_view::npos)
      distance = std::min(distance, edit_distance(name, candidate.substr(dot + 1)));
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates) {
  const std::string_view nearest = nearest_name(name, candidates);
  if (nearest.empty()) return {};
  return " (did you mean '" + std::string(nearest) + "'?)";
}

}  // namespace encore::model
