// SPDX-License-Identifier: Apache-2.0
#include "update_parts.hpp"

#include <encore/kernels/optimizer.hpp>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace encore::model {

namespace {

/// A part of fewer elements, or a smaller share of all, costs more by being one than it wins.
constexpr std::int64_t smallest_part = 1 << 14;
constexpr std::int64_t most_parts = 8;

/// The place of a parameter in the backward pass: 0 for the head, then the layers from the last one.
std::int64_t place_in_backward(std::string_view name, std::int64_t layers) {
  constexpr std::string_view prefix = "layer.";
  if (name.starts_with("head/")) return 0;
  if (!name.starts_with(prefix)) return layers + 1;
  std::int64_t layer = 0;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
  return layers - layer;
}

struct PlacedStretch {
  std::int64_t begin, end, place;
};

/// Joins neighbours where `together(first, second)`; what is joined has the later of the places.
template <class Together>
std::vector<PlacedStretch> joined(const std::vector<PlacedStretch>& stretches, const Together& together) {
  std::vector<PlacedStretch> result;
  for (const PlacedStretch& stretch : stretches) {
    if (!result.empty() && together(result.back(), stretch)) {
      result.back().end = stretch.end;
      result.back().place = std::max(result.back().place, stretch.place);
    } else {
      result.push_back(stretch);
    }
  }
  return result;
}

std::vector<PlacedStretch> stretches_of(const ParameterLayout& layout, std::int64_t layers) {
  std::vector<PlacedStretch> stretches;
  for (const Parameter& parameter : layout.parameters())
    stretches.push_back({parameter.offset, 0, place_in_backward(parameter.name, layers)});
  std::ranges::sort(stretches, {}, &PlacedStretch::begin);
  for (std::size_t i = 0; i < stretches.size(); ++i)
    stretches[i].end = i + 1 < stretches.size() ? stretches[i + 1].begin : layout.elements();
  const auto of_one_place = [](const PlacedStretch& first, const PlacedStretch& second) {
    return first.place == second.place;
  };
  const std::int64_t smallest = std::max(smallest_part, layout.elements() / most_parts);
  const auto small = [smallest](const PlacedStretch& first, const PlacedStretch&) {
    return first.end - first.begin < smallest;
  };
  std::vector<PlacedStretch> parts = joined(joined(stretches, of_one_place), small);
  const auto last_is_small = [&](const PlacedStretch& first, const PlacedStretch& second) {
    return second.end == layout.elements() && small(second, first);
  };
  return joined(parts, last_is_small);
}

}  // namespace

UpdatePart whole_update(const ParameterLayout& layout) {
  return {0, layout.elements(), layout.decayed_elements(), 0, 0};
}

std::vector<UpdatePart> update_parts(const ParameterLayout& layout, std::int64_t layers) {
  std::vector<PlacedStretch> stretches = stretches_of(layout, layers);
  std::ranges::stable_sort(stretches, {}, &PlacedStretch::place);
  std::vector<UpdatePart> parts;
  std::int64_t partial = 0;
  for (const PlacedStretch& stretch : stretches) {
    const std::int64_t count = kernels::adamw_partial_count(stretch.end - stretch.begin);
    parts.push_back(
        {stretch.begin, stretch.end,
         std::clamp<std::int64_t>(layout.decayed_elements() - stretch.begin, 0, stretch.end - stretch.begin),
         partial, partial + count});
    partial += count;
  }
  return parts;
}

}  // namespace encore::model
