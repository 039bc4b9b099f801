// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/device.hpp>
#include <encore/backend/memory.hpp>
#include <encore/graph/program.hpp>

#include <cstddef>
#include <vector>

namespace encore::graph {

struct ByteRange {
  std::byte* begin;
  std::byte* end;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

/// Sorted, with overlapping and touching ones put together, and without empty ones.
std::vector<ByteRange> merged(std::vector<ByteRange> ranges);

/// What some ranges of a space's memory held when it was made; kept on the device where there is room, else on the host.
template <class Space>
class RangeCopy {
 public:
  RangeCopy() = default;
  /// Queues the copy.
  RangeCopy(backend::Stream<Space>& stream, std::vector<ByteRange> ranges);

  void restore(backend::Stream<Space>& stream) const;
  const std::vector<ByteRange>& ranges() const { return ranges_; }
  bool on_host() const { return !host_.empty(); }

 private:
  std::vector<ByteRange> ranges_;
  backend::Allocation<Space> device_;
  std::vector<std::byte> host_;
};

/// What the buffers that segments change, and that outlive a step, held before the first of them ran, and where the
/// random streams stood.
template <class Space>
class KeptState {
 public:
  explicit KeptState(backend::Device<Space>& device);

  /// Takes over the copy of what a segment is about to write, unless all of it is kept already.
  void keep(RangeCopy<Space> copy);
  /// Puts everything back. Waits for the device.
  void restore() const;

 private:
  bool covers(const ByteRange& range) const;

  backend::Device<Space>* device_;
  std::vector<backend::RandomState> random_;
  std::vector<RangeCopy<Space>> copies_;  ///< the first to be kept holds the oldest content
  std::vector<ByteRange> covered_;        ///< merged
};

}  // namespace encore::graph
