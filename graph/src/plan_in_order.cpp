// SPDX-License-Identifier: Apache-2.0
#include "plan_in_order.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace encore::graph {

namespace {

/// The free stretches of an arena that grows at its end.
class FreeStretches {
 public:
  std::size_t take(std::size_t bytes) {
    const auto found = by_size_.lower_bound({bytes, 0});
    if (found != by_size_.end()) {
      const auto [size, offset] = *found;
      remove(offset, size);
      if (size > bytes) add(offset + bytes, size - bytes);
      return offset;
    }
    // Nothing is large enough: the last stretch is used where it touches the end, and the arena grows.
    std::size_t offset = end_;
    if (!by_offset_.empty()) {
      const auto [last, size] = *std::prev(by_offset_.end());
      if (last + size == end_) {
        remove(last, size);
        offset = last;
      }
    }
    end_ = offset + bytes;
    return offset;
  }

  void give_back(std::size_t offset, std::size_t bytes) {
    const auto next = by_offset_.find(offset + bytes);
    if (next != by_offset_.end()) {
      bytes += next->second;
      remove(next->first, next->second);
    }
    const auto after = by_offset_.lower_bound(offset);
    if (after != by_offset_.begin()) {
      const auto [before, size] = *std::prev(after);
      if (before + size == offset) {
        remove(before, size);
        offset = before;
        bytes += size;
      }
    }
    add(offset, bytes);
  }

  std::size_t end() const { return end_; }

 private:
  void add(std::size_t offset, std::size_t bytes) {
    by_offset_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }
  void remove(std::size_t offset, std::size_t bytes) {
    by_offset_.erase(offset);
    by_size_.erase({bytes, offset});
  }

  std::map<std::size_t, std::size_t> by_offset_;
  std::set<std::pair<std::size_t, std::size_t>> by_size_;
  std::size_t end_ = 0;
};

}  // namespace

std::size_t plan_in_order(std::vector<PlannedActivation>& activations) {
  std::vector<std::size_t> births(activations.size());
  std::iota(births.begin(), births.end(), std::size_t{0});
  std::vector<std::size_t> deaths = births;
  std::ranges::stable_sort(births, {}, [&](std::size_t i) { return activations[i].first_segment; });
  std::ranges::stable_sort(deaths, {}, [&](std::size_t i) { return activations[i].last_segment; });

  FreeStretches free;
  auto dying = deaths.begin();
  for (const std::size_t born : births) {
    PlannedActivation& activation = activations[born];
    for (; dying != deaths.end() && activations[*dying].last_segment < activation.first_segment; ++dying)
      if (activations[*dying].bytes > 0)
        free.give_back(activations[*dying].offset, activations[*dying].bytes);
    activation.offset = activation.bytes > 0 ? free.take(activation.bytes) : 0;
  }
  return free.end();
}

}  // namespace encore::graph
