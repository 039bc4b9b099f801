// SPDX-License-Identifier: Apache-2.0
#include "evaluate.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/checkpoint.hpp>
#include <encore/model/files/token_source.hpp>
#include <encore/model/trainer.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "../device/session.hpp"
#include "configure.hpp"
#include "data.hpp"
#include "golden.hpp"
#include "ranks.hpp"

namespace encore::command {

double mean_loss(model::Trainer& trainer, const model::TokenSource& source, std::int64_t sequences) {
  const std::int64_t rows = source.shape().sequences;
  const auto tokens = static_cast<std::size_t>(rows * source.shape().seq);
  std::vector<std::int32_t> ids(tokens), labels(tokens);
  double sum = 0;
  for (std::int64_t batch = 0; batch * rows < sequences; ++batch) {
    source.batch(batch, 0, ids, labels);
    const std::int64_t counted = std::min(rows, sequences - batch * rows);
    const std::int64_t first_ignored = counted * source.shape().seq;
    std::fill(labels.begin() + static_cast<std::ptrdiff_t>(first_ignored), labels.end(), -1);
    sum += static_cast<double>(counted) * trainer.evaluate(ids, labels);
  }
  return sum / static_cast<double>(sequences);
}

namespace {

int evaluate_rank(const EvaluateOptions& options, const model::Configuration& configuration, const Seat& seat,
                  Console& console) {
  const std::filesystem::path& file = *options.configuration.load;
  const model::TokenSource source(evaluation_corpus(options.data, configuration.model.vocab),
                                  {.sequences = configuration.train.microbatch,
                                   .seq = configuration.train.seq,
                                   .vocab = configuration.model.vocab},
                                  model::TokenOrder::sequential, configuration.seed);
  const DeviceSession session(options.threads);
  const auto trainer = model::make_trainer(configuration, seat.groups);
  model::load_checkpoint(file, *trainer);

  const std::int64_t whole = source.whole_sequences();
  const std::int64_t sequences = options.sequences > 0 ? std::min(options.sequences, whole) : whole;
  const double loss = mean_loss(*trainer, source, sequences);
  if (!std::isfinite(loss))
    throw ValidationError(
        fmt::format("'{}': the loss over {} is {}", file.string(), source.corpus().name(), loss));
  const double perplexity = std::min(std::exp(loss), std::numeric_limits<double>::max());
  const std::int64_t tokens = sequences * configuration.train.seq;
  if (options.json) {
    const nlohmann::ordered_json result{{"file", file.string()},
                                        {"data", source.corpus().name()},
                                        {"loss", loss},
                                        {"perplexity", perplexity},
                                        {"sequences", sequences},
                                        {"tokens", tokens},
                                        {"backend", name_of(configuration.backend)},
                                        {"precision", name_of(configuration.train.precision)}};
    console.line(result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    console.line(fmt::format("loss {:.4f} nats a token, perplexity {:.3f}, over {} tokens of {}", loss,
                             perplexity, tokens, source.corpus().name()));
  }
  return 0;
}

}  // namespace

int evaluate(const EvaluateOptions& options, Console& console) {
  if (options.golden) return evaluate_reference(options, console);
  const model::Configuration configuration = resolve(options.configuration, "bytes").configuration;
  return on_ranks(configuration, options.threads, console, [&](const Seat& seat, Console& of_rank) {
    return evaluate_rank(options, configuration, seat, of_rank);
  });
}

}  // namespace encore::command
