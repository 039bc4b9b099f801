// SPDX-License-Identifier: Apache-2.0
#include "kept_state.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <ranges>

namespace encore::graph {

std::vector<ByteRange> merged(std::vector<ByteRange> ranges) {
  std::erase_if(ranges, [](const ByteRange& range) { return range.begin == range.end; });
  std::ranges::sort(ranges, std::less<>(), &ByteRange::begin);
  std::vector<ByteRange> result;
  for (const ByteRange& range : ranges) {
    if (!result.empty() && range.begin <= result.back().end) {
      result.back().end = std::max(result.back().end, range.end);
    } else {
      result.push_back(range);
    }
  }
  return result;
}

template <class Space>
RangeCopy<Space>::RangeCopy(backend::Stream<Space>& stream, std::vector<ByteRange> ranges)
    : ranges_(std::move(ranges)) {
  std::size_t bytes = 0;
  for (const ByteRange& range : ranges_) bytes += static_cast<std::size_t>(range.end - range.begin);
  if (bytes == 0) return;
  // Half of what is free is left to whoever else needs some.
  const bool fits = bytes < backend::available_memory<Space>() / 2;
  if (fits) {
    device_ = backend::Allocation<Space>("kept by the profile", bytes);
  } else {
    host_.resize(bytes);
  }
  std::size_t offset = 0;
  for (const ByteRange& range : ranges_) {
    const auto size = static_cast<std::size_t>(range.end - range.begin);
    if (fits) {
      stream.copy(device_.data() + offset, range.begin, size, "profile: keeping");
    } else {
      stream.copy_to_host(host_.data() + offset, range.begin, size, "profile: keeping");
    }
    offset += size;
  }
}

template <class Space>
void RangeCopy<Space>::restore(backend::Stream<Space>& stream) const {
  std::size_t offset = 0;
  for (const ByteRange& range : ranges_) {
    const auto size = static_cast<std::size_t>(range.end - range.begin);
    if (on_host()) {
      stream.copy_to_device(range.begin, host_.data() + offset, size, "profile: putting back");
    } else {
      stream.copy(range.begin, device_.data() + offset, size, "profile: putting back");
    }
    offset += size;
  }
}

template <class Space>
KeptState<Space>::KeptState(backend::Device<Space>& device)
    : device_(&device), random_(device.random().snapshot(device.stream())) {}

template <class Space>
bool KeptState<Space>::covers(const ByteRange& range) const {
  return std::ranges::any_of(covered_, [&](const ByteRange& covered) {
    return covered.begin <= range.begin && range.end <= covered.end;
  });
}

template <class Space>
void KeptState<Space>::keep(RangeCopy<Space> copy) {
  if (std::ranges::all_of(copy.ranges(), [&](const ByteRange& range) { return covers(range); })) return;
  covered_.insert(covered_.end(), copy.ranges().begin(), copy.ranges().end());
  covered_ = merged(std::move(covered_));
  copies_.push_back(std::move(copy));
}

template <class Space>
void KeptState<Space>::restore() const {
  auto& stream = device_->stream();
  for (const RangeCopy<Space>& copy : copies_ | std::views::reverse) copy.restore(stream);
  device_->random().restore(stream, random_);
  stream.synchronize("profile: state put back");
}

#define ENCORE_INSTANTIATE(SPACE)  \
  template class RangeCopy<SPACE>; \
  template class KeptState<SPACE>;
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::graph
