// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/length_buckets.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "files/mutation.hpp"

namespace {

using namespace encore;
using namespace encore::graph;
using Histogram = std::vector<LengthCount>;

/// Least padding over all sets of at most `most` multiples that hold every length that can be held.
std::int64_t least_padding(const Histogram& histogram, const BucketLimits& limits) {
  std::set<std::int64_t> candidates;
  for (const auto& [length, count] : histogram) {
    const std::int64_t bucket = (length + limits.multiple_of - 1) / limits.multiple_of * limits.multiple_of;
    if (limits.longest == 0 || bucket <= limits.longest) candidates.insert(bucket);
  }
  const std::vector<std::int64_t> all(candidates.begin(), candidates.end());
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::uint32_t choice = 1; choice < (1U << all.size()); ++choice) {
    std::vector<std::int64_t> buckets;
    for (std::size_t i = 0; i < all.size(); ++i)
      if ((choice >> i & 1U) != 0) buckets.push_back(all[i]);
    if (buckets.size() > limits.most_buckets || buckets.back() != all.back()) continue;
    least = std::min(least, cost_of(histogram, buckets).padding);
  }
  return least;
}

TEST_CASE("the proposed buckets need the least padding there is") {
  std::mt19937 generator(11);
  for (int round = 0; round < 300; ++round) {
    std::map<std::int64_t, std::int64_t> counts;
    const std::size_t different = 1 + generator() % 10;
    for (std::size_t i = 0; i < different; ++i) counts[1 + generator() % 60] += 1 + generator() % 20;
    Histogram histogram;
    for (const auto& [length, count] : counts) histogram.push_back({length, count});
    std::shuffle(histogram.begin(), histogram.end(), generator);
    BucketLimits limits;
    limits.most_buckets = 1 + generator() % 5;
    limits.multiple_of = std::array<std::int64_t, 4>{1, 2, 8, 16}[generator() % 4];
    limits.longest = generator() % 3 == 0 ? 48 : 0;
    const auto fits = [&](const LengthCount& entry) { return limits.longest == 0 || entry.length <= 48; };
    if (std::ranges::none_of(histogram, fits)) continue;
    const auto sets = best_buckets(histogram, limits);
    CHECK(sets.back().padding == least_padding(histogram, limits));
    CHECK(sets.size() <= limits.most_buckets);
    for (std::size_t k = 0; k < sets.size(); ++k) {
      CHECK(sets[k].lengths.size() == k + 1);
      if (k > 0) CHECK(sets[k].padding < sets[k - 1].padding);
      for (const std::int64_t bucket : sets[k].lengths) CHECK(bucket % limits.multiple_of == 0);
    }
  }
}

TEST_CASE("coverage and waste count what is padded and what is left out") {
  const Histogram histogram{{10, 2}, {100, 1}, {1000, 1}};
  const BucketSet set = cost_of(histogram, {16, 128});
  CHECK(set.sequences == 4);
  CHECK(set.covered == 3);
  CHECK(set.coverage() == 0.75);
  CHECK(set.tokens == 120);
  CHECK(set.padding == 2 * 6 + 28);
  CHECK(set.waste() == doctest::Approx(40.0 / 120));
  CHECK(cost_of(histogram, {}).coverage() == 0);
}

TEST_CASE("with as many buckets as lengths nothing is wasted, and no more are proposed") {
  const auto sets = best_buckets(Histogram{{3}, {5}, {9}}, {10, 1, 0});
  CHECK(sets.size() == 3);
  CHECK(sets.back().waste() == 0);
  CHECK(sets.back().coverage() == 1);
}

TEST_CASE("a length belongs to the smallest bucket that holds it, and above the largest to none") {
  const std::vector<std::int64_t> buckets{64, 128, 512};
  CHECK(bucket_for(1, buckets) == 64);
  CHECK(bucket_for(64, buckets) == 64);
  CHECK(bucket_for(65, buckets) == 128);
  CHECK(bucket_for(511, buckets) == 512);
  CHECK(bucket_for(512, buckets) == 512);
  CHECK_FALSE(bucket_for(513, buckets));
  CHECK_FALSE(bucket_for(1, {}));
}

TEST_CASE("a hundred thousand different lengths are partitioned within seconds") {
  Histogram histogram;
  for (std::int64_t length = 1; length <= 100000; ++length)
    histogram.push_back({length, 1 + length * 7919 % 100});
  const auto start = std::chrono::steady_clock::now();
  const auto sets = best_buckets(histogram, {16, 1, 0});
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  CHECK(sets.size() == 16);
  // The best sixteen cannot be worse than sixteen of equal width.
  std::vector<std::int64_t> even;
  for (std::int64_t bucket = 6250; bucket <= 100000; bucket += 6250) even.push_back(bucket);
  CHECK(sets.back().padding <= cost_of(histogram, even).padding);
}

TEST_CASE("limits and histograms that make no sense are refused") {
  const Histogram histogram{{10, 1}};
  CHECK_THROWS_AS(best_buckets(histogram, {0, 1, 0}), ConfigurationError);
  CHECK_THROWS_AS(best_buckets(histogram, {1, 0, 0}), ConfigurationError);
  CHECK_THROWS_AS(best_buckets(histogram, {1, 1, 9}), ConfigurationError);
  CHECK_THROWS_AS(best_buckets(histogram, {1, 16, 12}), ConfigurationError);
  CHECK_THROWS_AS(best_buckets({}, {1, 1, 0}), ConfigurationError);
  CHECK_THROWS_AS(best_buckets(Histogram{{0, 1}}, {1, 1, 0}), ConfigurationError);
  CHECK_THROWS_AS(best_buckets(Histogram{{1, -1}}, {1, 1, 0}), ConfigurationError);
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max() / 2;
  CHECK_THROWS_AS(best_buckets(Histogram{{10, huge}}, {1, 1, 0}), ConfigurationError);
  CHECK_THROWS_AS(best_buckets(Histogram{{huge, 1}}, {1, 1, 0}), ConfigurationError);
  CHECK_THROWS_AS(cost_of(histogram, {16, 16}), ConfigurationError);
  CHECK_THROWS_AS(cost_of(histogram, {0}), ConfigurationError);
}

TEST_CASE("lengths are read one a line, with or without a count") {
  const auto histogram = parse_length_counts("128\n  64 , 3 # often\r\n\n# nothing\n128\t2\n7,1", "lengths");
  CHECK(histogram == Histogram{{7, 1}, {64, 3}, {128, 3}});
}

TEST_CASE("a line that is no length is refused with its number") {
  const auto refused = [](std::string_view text, const char* sentence) {
    CHECK_THROWS_WITH_AS(parse_length_counts(text, "f"), sentence, InputFileError);
  };
  refused("12\nabc\n",
          "'f', line 2: 'abc' stands where a length should: a line is a length and, if wanted, a count");
  refused("12 3 4\n",
          "'f', line 1: '3 4' stands where a count should: a line is a length and, if wanted, a count");
  refused("\n\n12,\n",
          "'f', line 3: '' stands where a count should: a line is a length and, if wanted, a count");
  refused("1.5\n",
          "'f', line 1: '1.5' stands where a length should: a line is a length and, if wanted, a count");
  refused("0\n", "'f', line 1: the length 0 must be at least 1");
  refused("-4 2\n", "'f', line 1: the length -4 must be at least 1");
  refused("5 0\n", "'f', line 1: the count 0 must be at least 1");
  refused("99999999999999999999\n", "'f', line 1: the length '99999999999999999999' is too large");
  refused("5 9223372036854775807\n5 1\n", "'f', line 2: the counts are too large to be added");
  refused("# nothing\n", "'f' holds no length");
  refused("", "'f' holds no length");
}

TEST_CASE("damaged files of lengths are read or refused, never anything else") {
  const std::array<std::string_view, 8> words{"-1",  "9223372036854775807", "1e5", ",", "#", "\n", "\t",
                                              "0x10"};
  Mutation mutation(17, words);
  const std::string good = "128\n64,3 # often\n\n512 10\n7\n2048, 12\n";
  for (int round = 0; round < fuzz_rounds(); ++round) {
    const std::string text = mutation.of(good);
    try {
      const auto histogram = parse_length_counts(text, "f");
      REQUIRE_FALSE(histogram.empty());
      try {
        const auto sets = best_buckets(histogram, {4, 8, 4096});
        for (const BucketSet& set : sets) {
          CHECK(set.padding >= 0);
          CHECK(set.covered <= set.sequences);
        }
      } catch (const ConfigurationError&) {
        // Lengths that are all too long, or too many to count.
      }
    } catch (const InputFileError& error) {
      const std::string_view sentence = error.what();
      CHECK(sentence.starts_with("'f'"));
      CHECK(std::ranges::none_of(sentence, [](char c) { return static_cast<unsigned char>(c) < 0x20; }));
    }
  }
}

}  // namespace
