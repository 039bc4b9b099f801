// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/token_source.hpp>

#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace encore::model {
namespace {

/// The output function of SplitMix64: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators,
/// OOPSLA 2014, with the constants of Vigna's splitmix64.c.
std::uint64_t mixed(std::uint64_t value) noexcept {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

__extension__ using Wide = unsigned __int128;

/// A number below `bound`, from a number that is random in all 64 bits.
std::int64_t scaled(std::uint64_t random, std::int64_t bound) noexcept {
  return static_cast<std::int64_t>((Wide{random} * static_cast<std::uint64_t>(bound)) >> 64);
}

}  // namespace

TokenSource::TokenSource(TokenCorpus corpus, const Shape& shape, TokenOrder order, std::int64_t seed)
    : corpus_(std::move(corpus)),
      shape_(shape),
      order_(order),
      // Mixed, because neighbouring seeds would otherwise give streams that are shifted copies of each other.
      stream_(mixed(static_cast<std::uint64_t>(seed))) {
  if (shape.sequences < 1 || shape.seq < 1 || shape.microbatches < 1 || shape.vocab < 1)
    throw InternalError(
        fmt::format("a token source of {} x {} sequences of {} tokens below {} makes no sense",
                    shape.microbatches, shape.sequences, shape.seq, shape.vocab));
  if (corpus_.size() <= shape.seq)
    throw InputFileError(
        fmt::format("{} holds {} tokens, but a sequence of train.seq = {} tokens needs {} at least",
                    corpus_.name(), corpus_.size(), shape.seq, shape.seq + 1));
  constexpr std::int64_t quickly_searched = 1 << 26;
  if (corpus_.size() <= quickly_searched) corpus_.require_below(shape.vocab);
}

std::int64_t TokenSource::begin_of(std::int64_t step, std::int64_t microbatch,
                                   std::int64_t row) const noexcept {
  // Unsigned: after 2^64 sequences the numbers begin anew.
  const auto number = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  const std::uint64_t sequence =
      (number(step) * number(shape_.microbatches) + number(microbatch)) * number(shape_.sequences) +
      number(row);
  if (order_ == TokenOrder::sequential)
    return static_cast<std::int64_t>(sequence % number(whole_sequences())) * shape_.seq;
  constexpr std::uint64_t increment = 0x9e3779b97f4a7c15;
  return scaled(mixed(stream_ + (sequence + 1) * increment), corpus_.size() - shape_.seq);
}

void TokenSource::batch(std::int64_t step, std::int64_t microbatch, std::span<std::int32_t> ids,
                        std::span<std::int32_t> labels) const {
  const auto expected = static_cast<std::size_t>(shape_.sequences * shape_.seq);
  if (ids.size() != expected || labels.size() != expected)
    throw InternalError(fmt::format("a batch of {} tokens was asked for with room for {} ids and {} labels",
                                    expected, ids.size(), labels.size()));
  const auto seq = static_cast<std::size_t>(shape_.seq);
  std::vector<std::int32_t> window(seq + 1);
  for (std::int64_t row = 0; row < shape_.sequences; ++row) {
    corpus_.copy(begin_of(step, microbatch, row), window, shape_.vocab);
    const std::size_t place = static_cast<std::size_t>(row) * seq;
    std::ranges::copy(window.begin(), window.end() - 1, ids.begin() + static_cast<std::ptrdiff_t>(place));
    std::ranges::copy(window.begin() + 1, window.end(), labels.begin() + static_cast<std::ptrdiff_t>(place));
  }
}

}  // namespace encore::model
