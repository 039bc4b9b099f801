// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/memory.hpp>
#include <encore/backend/philox.hpp>
#include <encore/backend/stream.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace encore::backend {

/// Named random streams whose seed and offset live in device memory, so that a replay draws fresh numbers.
template <class Space>
class RandomTracker {
 public:
  /// Most streams that a tracker can hold; the memory for all of them is taken at once.
  static constexpr std::size_t capacity = 64;

  /// Adds the streams `default`, `model-parallel` and `expert-parallel`, with seeds derived from `seed` as
  /// Megatron-Core does for rank 0 (seed, seed + 2718, seed + 1024).
  RandomTracker(Stream<Space>& stream, std::uint64_t seed);

  /// Adds a stream. Throws ConfigurationError when the name is taken. Not while recording.
  void add(const std::string& name, std::uint64_t seed);

  /// Device address of the stream's state, fixed for the tracker's life. Throws ConfigurationError for an
  /// unknown name, with the known ones.
  const RandomState* state(std::string_view name) const;

  /// Queues the advance of every stream's offset by one. May be recorded: this is what makes the next replay
  /// draw different numbers.
  void advance(Stream<Space>& stream);

  /// Copies of all states, in order of names(); synchronises. And back, for resuming.
  std::vector<RandomState> snapshot(Stream<Space>& stream) const;
  void restore(Stream<Space>& stream, const std::vector<RandomState>& states);
  const std::vector<std::string>& names() const { return names_; }

 private:
  Stream<Space>* stream_;
  std::vector<std::string> names_;
  Allocation<Space> states_;
};

}  // namespace encore::backend
