// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/token_source.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "temporary_folder.hpp"

using namespace encore::model;
using encore::InputFileError;

namespace {

/// A corpus whose tokens are their own positions.
TokenCorpus positions(std::int64_t count) {
  const TemporaryFolder folder;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  write_token_file(folder / "positions.bin", tokens, TokenWidth::uint32);
  return TokenCorpus::token_file(folder / "positions.bin");
}

using Batch = std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>>;

Batch batch(const TokenSource& source, std::int64_t step, std::int64_t microbatch) {
  const auto size = static_cast<std::size_t>(source.shape().sequences * source.shape().seq);
  Batch result{std::vector<std::int32_t>(size), std::vector<std::int32_t>(size)};
  source.batch(step, microbatch, result.first, result.second);
  return result;
}

constexpr TokenSource::Shape shape{.sequences = 3, .seq = 5, .microbatches = 2, .vocab = 1000};

}  // namespace

TEST_CASE("a batch holds stretches of the corpus, and a label is the token after its id") {
  for (const TokenOrder order : {TokenOrder::random, TokenOrder::sequential}) {
    const TokenSource source(positions(100), shape, order, 1);
    for (std::int64_t step = 0; step < 50; ++step) {
      const auto [ids, labels] = batch(source, step, step % 2);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        CHECK(labels[i] == ids[i] + 1);
        CHECK(labels[i] < 100);
        if (i % 5 != 0) CHECK(ids[i] == ids[i - 1] + 1);
      }
      CHECK(ids[5] == source.begin_of(step, step % 2, 1));
    }
  }
}

TEST_CASE("what a step sees is a pure function of seed and step") {
  const TokenSource source(positions(500), shape, TokenOrder::random, 42);
  const TokenSource twin(positions(500), shape, TokenOrder::random, 42);
  const Batch later = batch(source, 1'000'000'000'000, 1);
  for (std::int64_t step : std::vector<std::int64_t>{7, 3, 1'000'000'000'000, 3})
    CHECK(batch(source, step, 1) == batch(twin, step, 1));
  CHECK(batch(source, 1'000'000'000'000, 1) == later);
  const TokenSource other(positions(500), shape, TokenOrder::random, 43);
  CHECK(batch(other, 0, 0) != batch(source, 0, 0));
  CHECK(batch(source, 0, 0) != batch(source, 0, 1));
  CHECK(batch(source, 0, 1) != batch(source, 1, 0));
}

TEST_CASE("how a step is cut into microbatches does not change what it sees") {
  const auto step_of = [](std::int64_t microbatches, std::int64_t sequences) {
    const TokenSource source(positions(500),
                             {.sequences = sequences, .seq = 5, .microbatches = microbatches, .vocab = 1000},
                             TokenOrder::random, 9);
    std::vector<std::int32_t> ids;
    for (std::int64_t microbatch = 0; microbatch < microbatches; ++microbatch) {
      const auto part = batch(source, 17, microbatch).first;
      ids.insert(ids.end(), part.begin(), part.end());
    }
    return ids;
  };
  CHECK(step_of(1, 12) == step_of(4, 3));
  CHECK(step_of(12, 1) == step_of(3, 4));
  CHECK(step_of(12, 1) == step_of(1, 12));
}

TEST_CASE("random order reaches every position alike") {
  constexpr std::int64_t starts = 16;
  const TokenSource source(positions(starts + 5),
                           {.sequences = 64, .seq = 5, .microbatches = 1, .vocab = 1000}, TokenOrder::random,
                           5);
  std::vector<int> counts(starts);
  for (std::int64_t step = 0; step < 500; ++step)
    for (std::int64_t row = 0; row < 64; ++row) {
      const std::int64_t begin = source.begin_of(step, 0, row);
      REQUIRE(begin >= 0);
      REQUIRE(begin < starts);
      ++counts[static_cast<std::size_t>(begin)];
    }
  // 32000 draws over 16 values: chi-square with 15 degrees of freedom exceeds 44.3 once in 10000 seeds.
  const double expected = 500.0 * 64 / starts;
  double chi_square = 0;
  for (const int count : counts) chi_square += (count - expected) * (count - expected) / expected;
  CHECK(chi_square < 44.3);
}

TEST_CASE("sequential order passes once over the corpus and begins anew") {
  const TokenSource source(positions(31), {.sequences = 2, .seq = 5, .microbatches = 1, .vocab = 1000},
                           TokenOrder::sequential, 1);
  CHECK(source.whole_sequences() == 6);
  std::vector<std::int32_t> seen;
  for (std::int64_t step = 0; step < 3; ++step) {
    const auto ids = batch(source, step, 0).first;
    seen.insert(seen.end(), ids.begin(), ids.end());
  }
  std::vector<std::int32_t> expected(30);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(seen == expected);
  CHECK(batch(source, 3, 0) == batch(source, 0, 0));
}

TEST_CASE(
    "a corpus of one sequence and its last label suffices, a shorter one is refused with both numbers") {
  const TokenSource::Shape one{.sequences = 1, .seq = 5, .microbatches = 1, .vocab = 256};
  for (const TokenOrder order : {TokenOrder::random, TokenOrder::sequential}) {
    const TokenSource source(TokenCorpus::text("abcdef", "text"), one, order, 1);
    CHECK(batch(source, 8, 0).first == std::vector<std::int32_t>{'a', 'b', 'c', 'd', 'e'});
    CHECK(batch(source, 8, 0).second == std::vector<std::int32_t>{'b', 'c', 'd', 'e', 'f'});
    CHECK_THROWS_WITH_AS(
        TokenSource(TokenCorpus::text("abcde", "'short.txt'"), one, order, 1),
        "'short.txt' holds 5 tokens, but a sequence of train.seq = 5 tokens needs 6 at least",
        InputFileError);
    CHECK_THROWS_WITH_AS(TokenSource(TokenCorpus::text("", "'empty.txt'"), one, order, 1),
                         doctest::Contains("'empty.txt' holds 0 tokens"), InputFileError);
  }
}

TEST_CASE("a token outside the vocabulary is found before the first step") {
  CHECK_THROWS_WITH_AS(
      TokenSource(TokenCorpus::text("aaaaaaaaz", "'t'"),
                  {.sequences = 1, .seq = 2, .microbatches = 1, .vocab = 'z'}, TokenOrder::random, 1),
      "'t' holds the token 122 at position 8, but model.vocab = 122 allows at most 121", InputFileError);
}

TEST_CASE("wrong use of a token source is reported") {
  CHECK_THROWS_AS(TokenSource(positions(9), {.sequences = 0, .seq = 2, .microbatches = 1, .vocab = 9},
                              TokenOrder::random, 1),
                  encore::InternalError);
  const TokenSource source(positions(100), shape, TokenOrder::random, 1);
  std::vector<std::int32_t> ids(15), labels(14);
  CHECK_THROWS_AS(source.batch(0, 0, ids, labels), encore::InternalError);
}
