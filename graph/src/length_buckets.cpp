// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/length_buckets.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace encore::graph {

namespace {

/// Sequences that one bucket may end at: all of some lengths that round up to the same multiple.
struct Stretch {
  std::int64_t bucket;
  std::int64_t sequences;
  std::int64_t tokens;
};

constexpr std::int64_t most_tokens = std::numeric_limits<std::int64_t>::max() / 4;

/// The padding of `sequences` of `tokens` in all, or nothing where the numbers are too large to be counted.
std::optional<std::int64_t> padded_tokens(std::int64_t sequences, std::int64_t bucket) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(sequences, bucket, &product) || product > most_tokens) return std::nullopt;
  return product;
}

[[noreturn]] void throw_too_many() {
  throw ConfigurationError("the lengths describe more tokens than can be counted: divide the counts");
}

void check(const BucketLimits& limits) {
  if (limits.most_buckets == 0) throw ConfigurationError("at least one bucket is needed");
  if (limits.multiple_of < 1)
    throw ConfigurationError(fmt::format("buckets cannot be multiples of {}", limits.multiple_of));
}

void check(std::span<const LengthCount> histogram) {
  for (const auto& [length, count] : histogram)
    if (length < 1 || count < 1)
      throw ConfigurationError(
          fmt::format("a length of {} that occurs {} times makes no sense", length, count));
}

/// The histogram's stretches in order of their buckets, without those that no bucket may hold.
std::vector<Stretch> stretches_of(std::span<const LengthCount> histogram, const BucketLimits& limits) {
  const std::int64_t longest = limits.longest > 0 ? limits.longest : most_tokens;
  std::vector<Stretch> stretches;
  std::int64_t sequences = 0;
  check(histogram);
  for (const auto& [length, count] : histogram) {
    if (length > longest || length > most_tokens - limits.multiple_of) continue;
    const std::int64_t bucket = (length + limits.multiple_of - 1) / limits.multiple_of * limits.multiple_of;
    const auto tokens = padded_tokens(count, length);
    if (bucket > longest) continue;
    if (!tokens || __builtin_add_overflow(sequences, count, &sequences)) throw_too_many();
    stretches.push_back({bucket, count, *tokens});
  }
  std::ranges::sort(stretches, {}, &Stretch::bucket);
  std::vector<Stretch> joined;
  for (const Stretch& stretch : stretches) {
    if (joined.empty() || joined.back().bucket != stretch.bucket) {
      joined.push_back(stretch);
    } else {
      joined.back().sequences += stretch.sequences;
      joined.back().tokens += stretch.tokens;
    }
  }
  if (!joined.empty() && !padded_tokens(sequences, joined.back().bucket)) throw_too_many();
  return joined;
}

/// Least padding by dynamic programming over (buckets, last stretch covered). The padding of stretches i..j in one
/// bucket satisfies the quadrangle inequality, so the best last cut moves only to the right as j grows, and a row
/// is found by divide and conquer.
class Partition {
 public:
  explicit Partition(const std::vector<Stretch>& stretches) : stretches_(stretches) {
    sequences_.push_back(0);
    tokens_.push_back(0);
    for (const Stretch& stretch : stretches) {
      sequences_.push_back(sequences_.back() + stretch.sequences);
      tokens_.push_back(tokens_.back() + stretch.tokens);
    }
    best_.resize(stretches.size() + 1);
    for (std::size_t end = 1; end <= stretches.size(); ++end) best_[end] = padding(0, end);
    cuts_.emplace_back(stretches.size() + 1, 0);
  }

  std::int64_t padding() const { return best_.back(); }

  void add_bucket() {
    const std::size_t count = stretches_.size();
    std::vector<std::int64_t> next(count + 1, 0);
    cuts_.emplace_back(count + 1, 0);
    fill(next, 1, count, 0, count - 1);
    best_ = std::move(next);
  }

  std::vector<std::int64_t> buckets() const {
    std::vector<std::int64_t> buckets;
    std::size_t end = stretches_.size();
    for (std::size_t row = cuts_.size(); row-- > 0 && end > 0; end = cuts_[row][end])
      buckets.push_back(stretches_[end - 1].bucket);
    std::ranges::reverse(buckets);
    return buckets;
  }

 private:
  /// Of the stretches [begin, end) in the bucket of the last.
  std::int64_t padding(std::size_t begin, std::size_t end) const {
    return (sequences_[end] - sequences_[begin]) * stretches_[end - 1].bucket -
           (tokens_[end] - tokens_[begin]);
  }

  void fill(std::vector<std::int64_t>& next, std::size_t first, std::size_t last, std::size_t lowest,
            std::size_t highest) {
    if (first > last) return;
    const std::size_t middle = first + (last - first) / 2;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    std::size_t cut = lowest;
    for (std::size_t at = lowest; at <= std::min(highest, middle - 1); ++at) {
      const std::int64_t cost = best_[at] + padding(at, middle);
      if (cost < least) {
        least = cost;
        cut = at;
      }
    }
    next[middle] = least;
    cuts_.back()[middle] = static_cast<std::uint32_t>(cut);
    if (middle > first) fill(next, first, middle - 1, lowest, cut);
    fill(next, middle + 1, last, cut, highest);
  }

  const std::vector<Stretch>& stretches_;
  std::vector<std::int64_t> sequences_, tokens_;  ///< sums over the first stretches
  std::vector<std::int64_t> best_;                ///< padding of the first `end` stretches
  std::vector<std::vector<std::uint32_t>> cuts_;  ///< where the last bucket begins, by number of buckets
};

}  // namespace

double BucketSet::coverage() const {
  return sequences == 0 ? 0 : static_cast<double>(covered) / static_cast<double>(sequences);
}

double BucketSet::waste() const {
  return tokens == 0 ? 0 : static_cast<double>(padding) / static_cast<double>(tokens);
}

std::optional<std::int64_t> bucket_for(std::int64_t length, std::span<const std::int64_t> buckets) {
  const auto found = std::ranges::lower_bound(buckets, length);
  if (found == buckets.end()) return std::nullopt;
  return *found;
}

BucketSet cost_of(std::span<const LengthCount> histogram, std::vector<std::int64_t> buckets) {
  std::int64_t before = 0;
  for (const std::int64_t bucket : buckets) {
    if (bucket <= before)
      throw ConfigurationError(
          fmt::format("buckets must be positive and ascend, and {} does not after {}", bucket, before));
    before = bucket;
  }
  check(histogram);
  BucketSet set;
  set.lengths = std::move(buckets);
  for (const auto& [length, count] : histogram) {
    if (__builtin_add_overflow(set.sequences, count, &set.sequences)) throw_too_many();
    const auto bucket = bucket_for(length, set.lengths);
    if (!bucket) continue;
    const auto padded = padded_tokens(count, *bucket);
    if (!padded || *padded > most_tokens - set.tokens - set.padding) throw_too_many();
    set.covered += count;
    set.tokens += count * length;
    set.padding += *padded - count * length;
  }
  return set;
}

std::vector<BucketSet> best_buckets(std::span<const LengthCount> histogram, const BucketLimits& limits) {
  check(limits);
  const std::vector<Stretch> stretches = stretches_of(histogram, limits);
  if (stretches.empty())
    throw ConfigurationError(
        limits.longest > 0
            ? fmt::format("no length fits into a bucket of at most {} that is a multiple of {}",
                          limits.longest, limits.multiple_of)
            : "there is no length to make a bucket for");
  std::vector<BucketSet> sets;
  Partition partition(stretches);
  const std::size_t most = std::min(limits.most_buckets, stretches.size());
  sets.push_back(cost_of(histogram, partition.buckets()));
  while (sets.size() < most) {
    const std::int64_t before = partition.padding();
    partition.add_bucket();
    if (partition.padding() >= before) break;
    sets.push_back(cost_of(histogram, partition.buckets()));
  }
  return sets;
}

}  // namespace encore::graph
