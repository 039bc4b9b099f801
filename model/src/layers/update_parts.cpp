// SPDX-License-Identifier: Apache-2.0
#include "update_parts.hpp"

#include <encore/backend/error.hpp>
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
  std::int64_t weight = 0;  ///< how much it counts: the elements of a mean share, the same on all ranks
  bool experts = false;
  bool alone = false;  ///< never joined
};

/// Joins neighbours where `together(first, second)`; what is joined has the later of the places.
template <class Together>
std::vector<PlacedStretch> joined(const std::vector<PlacedStretch>& stretches, const Together& together) {
  std::vector<PlacedStretch> result;
  for (const PlacedStretch& stretch : stretches) {
    if (!result.empty() && together(result.back(), stretch)) {
      result.back().end = stretch.end;
      result.back().weight += stretch.weight;
      result.back().place = std::max(result.back().place, stretch.place);
    } else {
      result.push_back(stretch);
    }
  }
  return result;
}

/// A rank's own share may be smaller than another's; what is joined must not depend on that, as ranks sum together.
std::int64_t mean_share(const Parameter& parameter, const RankLayout& ranks) {
  std::int64_t shares = 1;
  for (const Partition& partition : parameter.partitions) shares *= ranks.size(partition.group);
  return (parameter.whole_elements() + shares - 1) / shares;
}

std::vector<PlacedStretch> stretches_of(const ParameterLayout& layout, std::int64_t layers) {
  std::vector<PlacedStretch> stretches;
  const RankLayout& ranks = layout.shard().layout;
  for (const Parameter& parameter : layout.parameters())
    stretches.push_back({parameter.offset, 0, place_in_backward(parameter.name, layers),
                         mean_share(parameter, ranks),
                         ranks.expert() > 1 && parameter.is_dealt_out(RankGroup::expert),
                         // If tied, shares of it must be the same in the last stage as in the first.
                         ranks.stages() > 1 && parameter.name == "embedding/tokens"});
  std::ranges::sort(stretches, {}, &PlacedStretch::begin);
  for (std::size_t i = 0; i < stretches.size(); ++i)
    stretches[i].end = i + 1 < stretches.size() ? stretches[i + 1].begin : layout.elements();
  const auto joinable = [](const PlacedStretch& first, const PlacedStretch& second) {
    return first.experts == second.experts && !first.alone && !second.alone;
  };
  const auto of_one_place = [joinable](const PlacedStretch& first, const PlacedStretch& second) {
    return first.place == second.place && joinable(first, second);
  };
  std::int64_t all = 0;
  for (const PlacedStretch& stretch : stretches) all += stretch.weight;
  const std::int64_t smallest = std::max(smallest_part, all / most_parts);
  const auto small = [=](const PlacedStretch& first, const PlacedStretch& second) {
    return first.weight < smallest && joinable(first, second);
  };
  std::vector<PlacedStretch> parts = joined(joined(stretches, of_one_place), small);
  const auto last_is_small = [&](const PlacedStretch& first, const PlacedStretch& second) {
    return second.end == layout.elements() && small(second, first);
  };
  return joined(parts, last_is_small);
}

}  // namespace

UpdatePart whole_update(const ParameterLayout& layout) {
  const Stretch all{0, layout.elements()};
  return {all.begin, all.end, all, 0, layout.decayed_elements(), RankGroup::data, 0, 0};
}

std::vector<UpdatePart> update_parts(const ParameterLayout& layout, std::int64_t layers) {
  std::vector<PlacedStretch> stretches = stretches_of(layout, layers);
  std::ranges::stable_sort(stretches, {}, &PlacedStretch::place);
  const ModelShard& shard = layout.shard();
  const bool shards = shards_optimizer(layout);
  std::vector<UpdatePart> parts;
  std::int64_t partial = 0, state = 0;
  for (const PlacedStretch& stretch : stretches) {
    const RankGroup group = stretch.experts ? RankGroup::expert_data : RankGroup::data;
    Stretch own{stretch.begin, stretch.end};
    if (shards) {
      // Even: the layout has placed the parameters so.
      const std::int64_t ranks = shard.layout.size(group), share = own.size() / ranks;
      own.begin += shard.layout.rank_in(group, shard.place) * share;
      own.end = own.begin + share;
    }
    const std::int64_t count = kernels::adamw_partial_count(own.size());
    parts.push_back({stretch.begin, stretch.end, own, shards ? state : own.begin,
                     std::clamp<std::int64_t>(layout.decayed_elements() - own.begin, 0, own.size()), group,
                     partial, partial + count});
    partial += count;
    state += own.size();
  }
  return parts;
}

const UpdatePart& part_with(const std::vector<UpdatePart>& parts, std::int64_t element) {
  const auto found = std::ranges::find_if(
      parts, [element](const UpdatePart& part) { return part.begin <= element && element < part.end; });
  if (found == parts.end()) throw InternalError("no part of the update has the element");
  return *found;
}

std::int64_t optimizer_elements(const ParameterLayout& layout, std::int64_t layers) {
  if (!shards_optimizer(layout)) return layout.elements();
  std::int64_t count = 0;
  for (const UpdatePart& part : update_parts(layout, layers)) count += part.own.size();
  return count;
}

std::vector<Stretch> norm_stretches(const ParameterLayout& layout, std::int64_t layers) {
  const ModelShard& shard = layout.shard();
  std::vector<Stretch> stretches;
  const auto add = [&](Stretch stretch) {
    if (stretch.begin >= stretch.end) return;
    if (!stretches.empty() && stretches.back().end == stretch.begin)
      stretches.back().end = stretch.end;
    else
      stretches.push_back(stretch);
  };
  // A tied table has a copy in the last stage, which counts in the first.
  const bool has_copy = !shard.has_embedding() && layout.contains("embedding/tokens");
  const auto add_without_copy = [&](Stretch stretch) {
    if (!has_copy) return add(stretch);
    const Parameter& copy = layout.parameter("embedding/tokens");
    add({stretch.begin, std::min(stretch.end, copy.offset)});
    add({std::max(stretch.begin, copy.offset + copy.elements()), stretch.end});
  };
  std::vector<UpdatePart> parts = update_parts(layout, layers);
  std::ranges::sort(parts, {}, &UpdatePart::begin);
  for (const ParameterSection& section : layout.sections()) {
    if (!section.tensor_parts && shard.place.tensor > 0) continue;
    for (const UpdatePart& part : parts) {
      if (!shards_optimizer(layout) && shard.layout.rank_in(part.group, shard.place) > 0) continue;
      add_without_copy(
          {std::max(section.elements.begin, part.own.begin), std::min(section.elements.end, part.own.end)});
    }
  }
  return stretches;
}

}  // namespace encore::model
