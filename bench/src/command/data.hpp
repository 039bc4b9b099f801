// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/token_source.hpp>
#include <encore/model/trainer.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"

namespace encore::command {

/// The tokens that the options name. Without any, the shipped text, of which the last twentieth is kept for
/// evaluation and the rest for training.
model::TokenCorpus training_corpus(const DataOptions& options);
model::TokenCorpus evaluation_corpus(const DataOptions& options);

/// Training batches. A step's batch depends on the step alone, so a resumed run sees what it would have seen.
class TrainingData {
 public:
  /// Throws InputFileError for a file that is missing, malformed, too short, or outside the vocabulary.
  TrainingData(const DataOptions& options, const model::Configuration& configuration);

  void set_batch(std::int64_t steps_done, model::Trainer& trainer);
  std::string description() const;

 private:
  model::TokenSource source_;
  std::vector<std::int32_t> ids_, labels_;
};

}  // namespace encore::command
