// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace encore::graph {

/// How often sequences of a length occur.
struct LengthCount {
  std::int64_t length;
  std::int64_t count = 1;
  friend bool operator==(const LengthCount&, const LengthCount&) = default;
};

/// One length a line and, after a comma or blanks, optionally how often it occurs; empty lines, and what follows a
/// `#`, do not count. Returns each length once, the shortest first. Throws InputFileError naming `source`, the
/// line and what is wrong with it, also when there is no length at all.
std::vector<LengthCount> parse_length_counts(std::string_view text, std::string_view source);

/// What padding every sequence to the next of some lengths costs.
struct BucketSet {
  std::vector<std::int64_t> lengths;  ///< ascending
  std::int64_t sequences = 0;         ///< all
  std::int64_t covered = 0;           ///< that are not longer than the largest bucket
  std::int64_t tokens = 0;            ///< of those that are covered
  std::int64_t padding = 0;           ///< tokens added to them

  /// Share of the sequences that some bucket holds.
  double coverage() const;
  /// Tokens of padding for each token.
  double waste() const;
};

/// The cost of these buckets. Throws ConfigurationError unless they are positive and ascending.
BucketSet cost_of(std::span<const LengthCount> histogram, std::vector<std::int64_t> buckets);

struct BucketLimits {
  std::size_t most_buckets = 8;
  std::int64_t multiple_of = 1;  ///< every bucket is a multiple of it
  std::int64_t longest = 0;      ///< no bucket is longer; 0: any
};

/// For 1, 2, ... up to `most_buckets` buckets the set that needs least padding, found exactly in
/// O(buckets * n log n) for n different lengths. All sequences that a bucket can hold at all are covered. The list ends early where
/// another bucket saves nothing. Throws ConfigurationError when a limit makes no sense, when no sequence is short
/// enough, or when the tokens are too many to be counted.
std::vector<BucketSet> best_buckets(std::span<const LengthCount> histogram, const BucketLimits& limits);

/// The smallest bucket that holds a sequence of this length. Nothing when it is longer than the largest; `buckets`
/// ascend.
std::optional<std::int64_t> bucket_for(std::int64_t length, std::span<const std::int64_t> buckets);

}  // namespace encore::graph
