// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/memory_plan.hpp>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <string>

#include "lifetimes.hpp"

namespace encore::graph {

namespace {

using Activations = std::vector<PlannedActivation>;

std::string quoted(const std::string& name) { return "'" + name + "'"; }

struct ByTime {
  std::vector<std::size_t> births, deaths;

  explicit ByTime(const Activations& activations) : births(activations.size()) {
    std::iota(births.begin(), births.end(), std::size_t{0});
    deaths = births;
    std::ranges::stable_sort(births, {}, [&](std::size_t i) { return activations[i].first_segment; });
    std::ranges::stable_sort(deaths, {}, [&](std::size_t i) { return activations[i].last_segment; });
  }
};

struct Clash {
  std::size_t older, younger;
};

/// The first two activations that share a byte while both are alive.
std::optional<Clash> first_clash(const Activations& activations) {
  const ByTime time(activations);
  std::map<std::size_t, std::size_t> alive;  // number of the activation by its offset
  auto dying = time.deaths.begin();
  for (const std::size_t born : time.births) {
    const PlannedActivation& activation = activations[born];
    for (; activations[*dying].last_segment < activation.first_segment; ++dying) {
      const auto entry = alive.find(activations[*dying].offset);
      if (entry != alive.end() && entry->second == *dying) alive.erase(entry);
    }
    if (activation.bytes == 0) continue;
    // Those alive do not overlap each other, so the neighbours in the arena stand for all.
    const auto after = alive.lower_bound(activation.offset);
    if (after != alive.end() && after->first < activation.offset + activation.bytes)
      return Clash{after->second, born};
    if (after != alive.begin()) {
      const auto before = std::prev(after);
      if (before->first + activations[before->second].bytes > activation.offset)
        return Clash{before->second, born};
    }
    alive.emplace(activation.offset, born);
  }
  return std::nullopt;
}

/// The plan's activations with the lives that they have in this outline.
Activations live_in(const Outline& outline, const MemoryPlan& plan) {
  const std::vector<Lifetime> lifetimes = lifetimes_of(outline);
  Activations activations = plan.activations;
  for (PlannedActivation& activation : activations) {
    const Lifetime& lifetime = lifetimes[static_cast<std::size_t>(activation.buffer)];
    activation.first_segment = lifetime.used() ? lifetime.first_write : 0;
    activation.last_segment = lifetime.last_use;
  }
  return activations;
}

void check_places(const Outline& outline, const MemoryPlan& plan) {
  std::vector<bool> placed(outline.buffers().size(), false);
  for (const PlannedActivation& activation : plan.activations) {
    const auto index = static_cast<std::size_t>(activation.buffer);
    if (index >= placed.size()) throw InternalError("the memory plan was made for another program");
    placed[index] = true;
    if (activation.offset + activation.bytes > plan.arena_bytes ||
        activation.bytes < outline.buffer(activation.buffer).bytes())
      throw InternalError(quoted(outline.buffer(activation.buffer).name) +
                          " does not fit into its place in the arena");
  }
  for (const Segment& segment : outline.segments())
    for (const auto* list : {&segment.reads, &segment.writes})
      for (const BufferId id : *list)
        if (outline.buffer(id).kind == BufferKind::activation && !placed[static_cast<std::size_t>(id)])
          throw InternalError("segment " + quoted(segment.name) + " uses " + quoted(outline.buffer(id).name) +
                              ", which has no place in the arena");
}

}  // namespace

void audit(const Outline& outline, const MemoryPlan& plan) {
  check_places(outline, plan);
  const Activations activations = live_in(outline, plan);
  const std::optional<Clash> clash = first_clash(activations);
  if (!clash) return;
  const PlannedActivation& older = activations[clash->older];
  const PlannedActivation& younger = activations[clash->younger];
  const auto segment = [&](std::size_t index) {
    return quoted(outline.segments()[index].name) + " (segment " + std::to_string(index) + ")";
  };
  std::string sentence =
      quoted(outline.buffer(older.buffer).name) + " and " + quoted(outline.buffer(younger.buffer).name) +
      " are alive together and share memory: " + segment(younger.first_segment) + " writes " +
      quoted(outline.buffer(younger.buffer).name) + " before " + segment(older.last_segment) +
      " is done with " + quoted(outline.buffer(older.buffer).name);
  // Where the plan itself had kept them apart, the program has another order than the plan was made for.
  const PlannedActivation& planned = plan.activations[clash->older];
  const PlannedActivation& other = plan.activations[clash->younger];
  if (planned.last_segment < other.first_segment)
    sentence += "; the memory plan was made for the opposite order";
  else if (other.last_segment < planned.first_segment)
    sentence += "; the memory plan was made for an order in which the last use of " +
                quoted(outline.buffer(younger.buffer).name) + " comes before the first of " +
                quoted(outline.buffer(older.buffer).name);
  throw InternalError(sentence);
}

std::vector<PlaceReuse> reuses(const Outline& outline, const MemoryPlan& plan) {
  const Activations activations = live_in(outline, plan);
  // Who was the last to write each stretch of the arena, by where the stretch begins.
  struct Stretch {
    std::size_t end;
    std::size_t owner;
  };
  std::map<std::size_t, Stretch> stretches;
  std::vector<PlaceReuse> found;
  for (const std::size_t born : ByTime(activations).births) {
    const PlannedActivation& activation = activations[born];
    if (activation.bytes == 0) continue;
    const std::size_t begin = activation.offset, end = begin + activation.bytes;
    auto at = stretches.lower_bound(begin);
    if (at != stretches.begin() && std::prev(at)->second.end > begin) --at;
    std::vector<std::size_t> owners;
    while (at != stretches.end() && at->first < end) {
      const std::size_t first = at->first;
      const Stretch old = at->second;
      owners.push_back(old.owner);
      at = stretches.erase(at);
      if (first < begin) stretches.emplace(first, Stretch{begin, old.owner});
      if (old.end > end) at = stretches.emplace(end, old).first;
    }
    stretches.insert_or_assign(begin, Stretch{end, born});
    std::ranges::sort(owners);
    owners.erase(std::ranges::unique(owners).begin(), owners.end());
    for (const std::size_t owner : owners) {
      const PlannedActivation& earlier = activations[owner];
      if (earlier.first_segment == earlier.last_segment &&
          activation.first_segment == activation.last_segment)
        continue;
      found.push_back({earlier.buffer, earlier.last_segment, activation.buffer, activation.first_segment});
    }
  }
  return found;
}

std::string order_that_breaks(const Outline& outline, const PlaceReuse& reuse) {
  const auto name = [&](BufferId id) { return quoted(outline.buffer(id).name); };
  return "running " + quoted(outline.segments()[reuse.first_write].name) + " before " +
         quoted(outline.segments()[reuse.last_use].name) + " would keep " + name(reuse.earlier) + " and " +
         name(reuse.later) + " in the same memory while both are needed";
}

}  // namespace encore::graph
