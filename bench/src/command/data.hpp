// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/length_buckets.hpp>
#include <encore/model/files/token_source.hpp>
#include <encore/model/trainer.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"

namespace encore::command {

/// The tokens that the options name. Without any, the shipped text, of which the last twentieth is kept for
/// evaluation and the rest for training. Throws ConfigurationError for a tokenizer with more tokens than `vocab`.
model::TokenCorpus training_corpus(const DataOptions& options, std::int64_t vocab);
model::TokenCorpus evaluation_corpus(const DataOptions& options, std::int64_t vocab);

/// The longest sequence that is recorded: a comparison of eager with replayed steps uses it.
std::int64_t recorded_length(const model::Configuration& configuration);

/// Training batches. A step's batch depends on the step alone, so a resumed run sees what it would have seen; data rank r
/// gets the microbatches from r * train.microbatches on, of those of all data ranks.
class TrainingData {
 public:
  /// Throws InputFileError for a file that is missing, malformed, too short, or outside the vocabulary, and for a
  /// length above train.seq.
  TrainingData(const DataOptions& options, const model::Configuration& configuration,
               std::int64_t data_rank = 0);

  /// Sets the batch of the step after `steps_done`; `length` instead of the length that is drawn for it.
  void set_batch(std::int64_t steps_done, model::Trainer& trainer, std::optional<std::int64_t> length = {});
  std::string description() const;
  bool has_lengths() const { return !lengths_.empty(); }

 private:
  std::int64_t length_of_step(std::int64_t steps_done) const;
  void shorten(std::int64_t length);

  model::TokenSource source_;  ///< of all data ranks
  std::int64_t microbatches_;  ///< of this one
  std::int64_t first_microbatch_;
  std::vector<graph::LengthCount> lengths_;  ///< empty: always train.seq
  std::int64_t lengths_total_ = 0;           ///< sum of their counts
  std::uint64_t seed_;
  std::vector<std::int32_t> ids_, labels_;
};

}  // namespace encore::command
