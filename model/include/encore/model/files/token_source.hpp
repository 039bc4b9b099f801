// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/token_corpus.hpp>

#include <cstdint>
#include <span>

namespace encore::model {

enum class TokenOrder {
  random,     ///< every sequence begins at a position drawn from the seed and the sequence's number
  sequential  ///< one sequence after another, from the beginning again after the last whole one
};

/// Gives out training or evaluation batches. The position is the step: there is no other state, so a run that
/// is resumed at step n sees what an uninterrupted one would have seen.
class TokenSource {
 public:
  struct Shape {
    std::int64_t sequences;         ///< in a microbatch
    std::int64_t seq;               ///< tokens of a sequence
    std::int64_t microbatches = 1;  ///< in a step
    std::int64_t vocab;
  };

  /// Throws InputFileError if the corpus is shorter than one sequence and its last label, or holds a token
  /// that is not below `vocab`. (A corpus of more than 2^26 tokens is not searched for one: `batch` finds it
  /// when it comes.)
  TokenSource(TokenCorpus corpus, const Shape& shape, TokenOrder order, std::int64_t seed);

  /// Fills ids and labels [sequences, seq] of a microbatch of a step, both counted from 0. A label is the
  /// token after its id. With s = (step * microbatches + microbatch) * sequences + row, a row begins at
  ///
  ///   random      floor(h(seed, s) * (size - seq) / 2^64), h being the s-th number of SplitMix64
  ///   sequential  (s mod floor((size - 1) / seq)) * seq
  ///
  /// so that only the product of microbatches and sequences decides what a step sees.
  void batch(std::int64_t step, std::int64_t microbatch, std::span<std::int32_t> ids,
             std::span<std::int32_t> labels) const;

  /// Where row `row` of the microbatch begins in the corpus.
  std::int64_t begin_of(std::int64_t step, std::int64_t microbatch, std::int64_t row) const noexcept;

  /// Sequences that follow each other without overlap in the corpus.
  std::int64_t whole_sequences() const noexcept { return (corpus_.size() - 1) / shape_.seq; }

  const TokenCorpus& corpus() const noexcept { return corpus_; }
  const Shape& shape() const noexcept { return shape_; }

 private:
  TokenCorpus corpus_;
  Shape shape_;
  TokenOrder order_;
  std::uint64_t stream_;
};

}  // namespace encore::model
