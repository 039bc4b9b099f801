// SPDX-License-Identifier: Apache-2.0
#include "data.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/files/embedded_text.hpp>
#include <encore/model/files/mapped_file.hpp>
#include <encore/model/files/tokenizer.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "numbers.hpp"

namespace encore::command {

namespace {

bool is_shipped(const DataOptions& options) { return !options.tokens && !options.text; }

model::TokenCorpus encoded(const DataOptions& options, std::int64_t vocab) {
  const model::Tokenizer tokenizer = model::Tokenizer::load(*options.tokenizer);
  if (tokenizer.vocabulary_size() > vocab)
    throw ConfigurationError(fmt::format(
        "the tokens of {} go up to {}, but model.vocab is {}: take the model's own tokenizer, or set "
        "model.vocab to {} or more",
        tokenizer.name(), tokenizer.vocabulary_size() - 1, vocab, tokenizer.vocabulary_size()));
  if (!options.text)
    return model::TokenCorpus::tokens(tokenizer.encode(model::embedded_text()), "the shipped text");
  const model::MappedFile file(*options.text);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  return model::TokenCorpus::tokens(tokenizer.encode(text), fmt::format("'{}'", options.text->string()));
}

model::TokenCorpus corpus(const DataOptions& options, std::int64_t vocab) {
  if (options.tokenizer) return encoded(options, vocab);
  if (options.tokens) return model::TokenCorpus::token_file(*options.tokens);
  if (options.text) return model::TokenCorpus::text_file(*options.text);
  return model::TokenCorpus::embedded();
}

std::int64_t first_held_out(const model::TokenCorpus& shipped) {
  return shipped.size() - shipped.size() / 20;
}

model::TokenSource training_source(const DataOptions& options, const model::Configuration& configuration) {
  const model::TrainConfiguration& train = configuration.train;
  return {training_corpus(options, configuration.model.vocab),
          {.sequences = train.microbatch,
           .seq = train.seq,
           .microbatches = train.microbatches * configuration.parallel.data,
           .vocab = configuration.model.vocab},
          model::TokenOrder::random,
          configuration.seed};
}

std::vector<graph::LengthCount> lengths_in(const std::filesystem::path& file) {
  constexpr std::size_t most_bytes = std::size_t{1} << 30;
  return graph::parse_length_counts(model::read_text_file(file, most_bytes), file.string());
}

}  // namespace

model::TokenCorpus training_corpus(const DataOptions& options, std::int64_t vocab) {
  const model::TokenCorpus whole = corpus(options, vocab);
  return is_shipped(options) ? whole.slice(0, first_held_out(whole)) : whole;
}

model::TokenCorpus evaluation_corpus(const DataOptions& options, std::int64_t vocab) {
  const model::TokenCorpus whole = corpus(options, vocab);
  return is_shipped(options) ? whole.slice(first_held_out(whole), whole.size()) : whole;
}

std::int64_t recorded_length(const model::Configuration& configuration) {
  const auto& buckets = configuration.graph.buckets;
  return buckets.empty() ? configuration.train.seq : buckets.back();
}

TrainingData::TrainingData(const DataOptions& options, const model::Configuration& configuration,
                           std::int64_t data_rank)
    : source_(training_source(options, configuration)),
      microbatches_(configuration.train.microbatches),
      first_microbatch_(data_rank * microbatches_),
      seed_(static_cast<std::uint64_t>(configuration.seed)) {
  if (!options.lengths) return;
  lengths_ = lengths_in(*options.lengths);
  for (const graph::LengthCount& each : lengths_)
    if (__builtin_add_overflow(lengths_total_, each.count, &lengths_total_))
      throw InputFileError(fmt::format("{} counts more sequences than 2^63", options.lengths->string()));
  if (lengths_.back().length > configuration.train.seq)
    throw InputFileError(
        fmt::format("{} has a length of {} and train.seq is {}: set train.seq to the longest",
                    options.lengths->string(), lengths_.back().length, configuration.train.seq));
}

std::int64_t TrainingData::length_of_step(std::int64_t steps_done) const {
  // SplitMix64 (Steele, Lea and Flood, 2014): a resumed run draws what it would have drawn.
  std::uint64_t bits = seed_ + 0x9E3779B97F4A7C15ULL * (static_cast<std::uint64_t>(steps_done) + 1);
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBULL;
  auto place = static_cast<std::int64_t>((bits ^ (bits >> 31)) % static_cast<std::uint64_t>(lengths_total_));
  for (const graph::LengthCount& each : lengths_) {
    if (place < each.count) return each.length;
    place -= each.count;
  }
  return lengths_.back().length;
}

/// Keeps the beginning of each sequence.
void TrainingData::shorten(std::int64_t length) {
  const std::int64_t full = source_.shape().seq;
  for (auto* tokens : {&ids_, &labels_}) {
    const std::int64_t rows = std::ssize(*tokens) / full;
    for (std::int64_t row = 0; row < rows; ++row)
      std::copy_n(tokens->begin() + row * full, length, tokens->begin() + row * length);
    tokens->resize(static_cast<std::size_t>(rows * length));
  }
}

void TrainingData::set_batch(std::int64_t steps_done, model::Trainer& trainer,
                             std::optional<std::int64_t> length) {
  const model::TokenSource::Shape& shape = source_.shape();
  const auto microbatch = static_cast<std::size_t>(shape.sequences * shape.seq);
  ids_.resize(static_cast<std::size_t>(microbatches_) * microbatch);
  labels_.resize(ids_.size());
  for (std::int64_t index = 0; index < microbatches_; ++index) {
    const std::size_t begin = static_cast<std::size_t>(index) * microbatch;
    source_.batch(steps_done, first_microbatch_ + index, std::span(ids_).subspan(begin, microbatch),
                  std::span(labels_).subspan(begin, microbatch));
  }
  if (!length) length = lengths_.empty() ? shape.seq : length_of_step(steps_done);
  shorten(*length);
  trainer.set_batch(ids_, labels_, {microbatches_, shape.sequences, *length});
}

std::string TrainingData::description() const {
  return fmt::format("{}, {} tokens", source_.corpus().name(), count_text(source_.corpus().size()));
}

}  // namespace encore::command
