// SPDX-License-Identifier: Apache-2.0
#include "data.hpp"

#include <fmt/format.h>

#include <span>

#include "numbers.hpp"

namespace encore::command {

namespace {

bool is_shipped(const DataOptions& options) { return !options.tokens && !options.text; }

model::TokenCorpus corpus(const DataOptions& options) {
  if (options.tokens) return model::TokenCorpus::token_file(*options.tokens);
  if (options.text) return model::TokenCorpus::text_file(*options.text);
  return model::TokenCorpus::embedded();
}

std::int64_t first_held_out(const model::TokenCorpus& shipped) {
  return shipped.size() - shipped.size() / 20;
}

model::TokenSource training_source(const DataOptions& options, const model::Configuration& configuration) {
  const model::TrainConfiguration& train = configuration.train;
  return {training_corpus(options),
          {.sequences = train.microbatch,
           .seq = train.seq,
           .microbatches = train.microbatches,
           .vocab = configuration.model.vocab},
          model::TokenOrder::random,
          configuration.seed};
}

}  // namespace

model::TokenCorpus training_corpus(const DataOptions& options) {
  const model::TokenCorpus whole = corpus(options);
  return is_shipped(options) ? whole.slice(0, first_held_out(whole)) : whole;
}

model::TokenCorpus evaluation_corpus(const DataOptions& options) {
  const model::TokenCorpus whole = corpus(options);
  return is_shipped(options) ? whole.slice(first_held_out(whole), whole.size()) : whole;
}

TrainingData::TrainingData(const DataOptions& options, const model::Configuration& configuration)
    : source_(training_source(options, configuration)) {}

void TrainingData::set_batch(std::int64_t steps_done, model::Trainer& trainer) {
  const model::TokenSource::Shape& shape = source_.shape();
  const auto microbatch = static_cast<std::size_t>(shape.sequences * shape.seq);
  ids_.resize(static_cast<std::size_t>(shape.microbatches) * microbatch);
  labels_.resize(ids_.size());
  for (std::int64_t index = 0; index < shape.microbatches; ++index) {
    const std::size_t begin = static_cast<std::size_t>(index) * microbatch;
    source_.batch(steps_done, index, std::span(ids_).subspan(begin, microbatch),
                  std::span(labels_).subspan(begin, microbatch));
  }
  trainer.set_batch(ids_, labels_);
}

std::string TrainingData::description() const {
  return fmt::format("{}, {} tokens", source_.corpus().name(), count_text(source_.corpus().size()));
}

}  // namespace encore::command
