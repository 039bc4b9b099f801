// SPDX-License-Identifier: Apache-2.0
#include "training.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/version.hpp>
#include <encore/model/checkpoint.hpp>
#include <encore/model/files/atomic_file.hpp>
#include <encore/model/files/mapped_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <system_error>
#include <utility>

#include "compare.hpp"
#include "configure.hpp"
#include "evaluate.hpp"
#include "learning_rate.hpp"
#include "numbers.hpp"
#include "report/gather.hpp"
#include "report/read.hpp"

namespace encore::command {

namespace {

using Clock = std::chrono::steady_clock;

/// In the place of a signal: above all of them.
constexpr int log_failed = 1 << 10;

std::int64_t tokens_of_step(const model::TrainConfiguration& train) {
  return train.microbatches * train.microbatch * train.seq;
}

/// Finds out before the first step, and not after the last, that a file could not be written.
void require_writable(const std::filesystem::path& file) { const model::AtomicFile probe(file); }

/// A folder of a checkpoint gets the tokenizer of its text, and what tells where a text begins and ends; files that it
/// holds already stay, but another tokenizer would give the model's tokens another meaning.
void bring_tokenizer(const std::filesystem::path& folder, const std::filesystem::path& tokenizer) {
  constexpr std::size_t most_bytes = std::size_t{1} << 28;
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) return;
  const bool is_folder = std::filesystem::is_directory(tokenizer, ignored);
  const std::filesystem::path beside = is_folder ? tokenizer : tokenizer.parent_path();
  const auto bring = [&](const std::filesystem::path& from, const char* name) {
    if (std::filesystem::exists(from, ignored) && !std::filesystem::exists(folder / name, ignored))
      model::write_file_atomically(folder / name, model::read_text_file(from, most_bytes));
  };
  const std::filesystem::path from = is_folder ? tokenizer / "tokenizer.json" : tokenizer;
  const std::filesystem::path present = folder / "tokenizer.json";
  if (std::filesystem::exists(present, ignored) &&
      model::read_text_file(present, most_bytes) != model::read_text_file(from, most_bytes))
    throw OutputFileError(
        fmt::format("cannot save to '{}': it holds another tokenizer.json than '{}'; name another folder",
                    folder.string(), from.string()));
  bring(from, "tokenizer.json");
  for (const char* const name : {"tokenizer_config.json", "generation_config.json"})
    bring(beside / name, name);
}

}  // namespace

void TrainingTotals::add(const model::StepResult& result) {
  ++steps;
  last_loss = result.loss;
  fallbacks += result.report.fallbacks;
  capture_seconds += result.report.capture_seconds;
  if (result.report.mode != graph::StepMode::replay) return;
  ++replayed;
  graph_nodes = result.report.graph_nodes;
  host_waits_in_replay += result.report.host_syncs + result.report.host_copies;
}

Training::Training(const TrainOptions& options, Console& console, const Seat& seat,
                   const model::ResolvedConfiguration& resolved)
    : options_(options),
      console_(console),
      seat_(seat),
      resolved_(resolved),
      configuration_(resolved_.configuration),
      data_(options.data, configuration_, seat.data_rank),
      session_(options.threads),
      trainer_(model::make_trainer(configuration_, seat.groups)) {
  if (seat.speaks()) {
    if (options.save) model::require_savable(*options.save, configuration_.model, options.shard_bytes);
    if (options.save && options.data.tokenizer) bring_tokenizer(*options.save, *options.data.tokenizer);
    if (options.report) require_writable(*options.report);
    if (options.profile_file) require_writable(*options.profile_file);
  }
  std::int64_t steps_done = 0;
  if (options.configuration.load) {
    const model::LoadedCheckpoint loaded = model::load_checkpoint(*options.configuration.load, *trainer_);
    if (loaded.resumes) steps_done = loaded.steps_done;
  }
  if (!options.log || !seat.speaks()) return;
  if (complete()) {
    finish_left_log(*options.log, steps_done);
  } else {
    log_ = open_log(*options.log, steps_done);
  }
}

std::string Training::introduction() const {
  const model::ModelConfiguration& model = configuration_.model;
  const model::TrainConfiguration& train = configuration_.train;
  std::string text =
      fmt::format("encore {}: {} model of {} layers, {} parameters, {} on {} ({})\n", ENCORE_VERSION_STRING,
                  model.family, model.layers, count_text(model::parameter_count(model)),
                  name_of(train.precision), name_of(configuration_.backend), trainer_->device_description());
  text += fmt::format("matrix products by {}\n", trainer_->blas_description());
  text += fmt::format("data: {}; {} tokens a step\n", data_.description(),
                      tokens_of_step(train) * configuration_.parallel.data);
  if (seat_.groups.world)
    text += fmt::format("ranks: {}: {} tensor x {} data x {} stages; {}\n", seat_.groups.world->size(),
                        configuration_.parallel.tensor, configuration_.parallel.data,
                        seat_.groups.pipeline ? configuration_.parallel.pipeline : std::int64_t{1},
                        seat_.groups.world->description());
  text += fmt::format("memory: {}; graphs: {}",
                      bytes_text(static_cast<double>(trainer_->memory_plan().total_bytes())),
                      name_of(configuration_.graph.impl));
  if (trainer_->steps_done() > 0) text += fmt::format("\nresumed after step {}", trainer_->steps_done());
  for (const std::string& note : resolved_.notes) text += fmt::format("\nnote: {}", note);
  return text;
}

bool Training::complete() const { return trainer_->steps_done() >= configuration_.train.steps; }

int Training::run() {
  Progress progress(console_, trainer_->steps_done(), configuration_.train.steps, options_.quiet);
  const auto start = Clock::now();
  int signal = 0;
  try {
    signal = train_until_done(progress);
  } catch (const Error&) {
    progress.end();
    try {
      if (log_) log_->finish();
    } catch (const Error&) {
      // The first error is the one to report; what was logged stays in the partial file.
    }
    throw;
  }
  progress.end();
  totals_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (log_) log_->finish();
  return signal;
}

int Training::train_until_done(Progress& progress) {
  // The threads of a process have one of it together.
  std::optional<Interruption> interruption;
  if (seat_.speaks() || !seat_.is_thread) interruption.emplace();
  prepare_evaluation(progress);
  const std::int64_t interval = configuration_.train.checkpoint_interval;
  int signal = signal_of_ranks(interruption);
  while (!complete() && signal == 0) {
    train_step(progress);
    if (interval > 0 && trainer_->steps_done() % interval == 0) save();
    signal = signal_of_ranks(interruption);
  }
  save();
  if (log_failure_) std::rethrow_exception(log_failure_);
  if (signal == log_failed)
    throw OutputFileError("the first rank could not write its log, and has ended the training");
  return signal;
}

int Training::signal_of_ranks(const std::optional<Interruption>& interruption) {
  const int mine = log_failure_ ? log_failed : interruption ? interruption->signal() : 0;
  if (!seat_.groups.world) return mine;
  // All must stop after the same step. Asking each other waits for the device, so not after each.
  constexpr std::int64_t steps_between = 8;
  if (trainer_->steps_done() % steps_between != 0) return 0;
  return trainer_->largest_of_ranks(mine);
}

void Training::train_step(Progress& progress) {
  const auto start = Clock::now();
  const std::int64_t done = trainer_->steps_done();
  data_.set_batch(done, *trainer_);
  const double rate = learning_rate(configuration_.train, done);
  model::StepResult result = trainer_->step(rate);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  // Of all data ranks.
  const auto tokens = static_cast<double>(result.tokens * configuration_.parallel.data);
  const double tokens_per_second = tokens / seconds;
  StepRecord record{
      .result = std::move(result), .learning_rate = rate, .tokens_per_second = tokens_per_second};
  record.evaluation_loss = evaluate_if_due();
  if (options_.report && seat_.speaks()) kept_steps_.push_back(report_step(record));
  totals_.add(record.result);
  write_log(record);
  progress.show(record);
  note_refusal(progress, record.result);
  require_finite(record.result);
}

/// The first loss comes before the first step, so that memory that does not suffice for evaluating is found then.
void Training::prepare_evaluation(Progress& progress) {
  const std::int64_t left = configuration_.train.steps - trainer_->steps_done();
  constexpr std::int64_t of_a_report = 10;
  evaluate_every_ = options_.evaluate_every;
  if (evaluate_every_ == 0 && options_.report)
    evaluate_every_ = std::max<std::int64_t>(1, left / of_a_report);
  if (evaluate_every_ == 0) return;
  try {
    evaluation_.emplace(evaluation_corpus(options_.data, configuration_.model.vocab),
                        model::TokenSource::Shape{.sequences = configuration_.train.microbatch,
                                                  .seq = configuration_.train.seq,
                                                  .vocab = configuration_.model.vocab},
                        model::TokenOrder::sequential, configuration_.seed);
    kept_evaluations_.push_back({trainer_->steps_done(), evaluation_loss()});
  } catch (const Error& error) {
    // Where a rank cannot evaluate, others may have begun to.
    if (options_.evaluate_every > 0 || (seat_.groups.world && evaluation_)) throw;
    progress.note(fmt::format("note: the report has no evaluation: {}", error.what()));
    evaluate_every_ = 0;
  }
}

/// Of so many sequences that it takes no longer than a few steps.
double Training::evaluation_loss() {
  constexpr std::int64_t batches = 8;
  return mean_loss(*trainer_, *evaluation_,
                   std::min(evaluation_->whole_sequences(), batches * configuration_.train.microbatch));
}

std::optional<double> Training::evaluate_if_due() {
  if (evaluate_every_ == 0 || (trainer_->steps_done() % evaluate_every_ != 0 && !complete()))
    return std::nullopt;
  kept_evaluations_.push_back({trainer_->steps_done(), evaluation_loss()});
  return kept_evaluations_.back().loss;
}

void Training::write_log(const StepRecord& record) {
  if (!log_ || log_failure_) return;
  try {
    log_->append(log_line(record, model::has_block(configuration_.model, model::Block::experts)));
  } catch (const OutputFileError&) {
    // The training is worth more than its log.
    require_finite(record.result);
    if (seat_.groups.world) {  // All ranks save together, once they know.
      log_failure_ = std::current_exception();
      return;
    }
    save();
    throw;
  }
}

void Training::note_refusal(Progress& progress, const model::StepResult& result) {
  if (result.over_budget) {
    if (!std::exchange(budget_noted_, true))
      progress.note(
          fmt::format("note: step {} ran eagerly, as others may: {}", result.step, result.eager_reason));
    return;
  }
  if (refusal_noted_ || result.eager_reason.empty()) return;
  refusal_noted_ = true;
  const bool always = !trainer_->refusal().empty();
  progress.note(
      always ? fmt::format("note: not captured, training goes on eagerly: {}", result.eager_reason)
             : fmt::format("note: step {} ran eagerly, as others may: {}", result.step, result.eager_reason));
}

void Training::require_finite(const model::StepResult& result) const {
  if (std::isfinite(result.loss) && std::isfinite(result.gradient_norm)) return;
  if (result.skipped) return;  // The step left everything as it was.
  std::string where = trainer_->first_bad_boundary();
  where = where.empty()
              ? (configuration_.graph.checksums ? "" : "; graph.checksums = true would name the segment")
              : "; " + where;
  throw ValidationError(
      fmt::format("step {} gave loss {} and gradient norm {}{}: nothing was saved after it; lower "
                  "train.lr or set train.clip",
                  result.step, result.loss, result.gradient_norm, where));
}

void Training::save() {
  if (!options_.save || saved_step_ == trainer_->steps_done()) return;
  model::save_checkpoint(*options_.save, *trainer_, options_.shard_bytes);
  saved_step_ = trainer_->steps_done();
}

model::ReplayComparison Training::compare(std::int64_t steps) {
  const std::int64_t length = recorded_length(configuration_);
  return model::compare_eager_with_replay(
      *trainer_, steps,
      {.set_batch = [this, length](std::int64_t done,
                                   model::Trainer& trainer) { data_.set_batch(done, trainer, length); },
       .learning_rate = [this](std::int64_t done) { return learning_rate(configuration_.train, done); }},
      options_.report ? model::ComparisonOptions{.block_steps = block_steps(steps)}
                      : model::ComparisonOptions{});
}

graph::StepProfile Training::profile() {
  const std::int64_t done = trainer_->steps_done();
  data_.set_batch(done, *trainer_, recorded_length(configuration_));
  return trainer_->profile(learning_rate(configuration_.train, done), {});
}

Report Training::take_report(const std::string& failure) {
  Report report;
  report.title =
      fmt::format("{}, trained on {}", options_.configuration.preset.value_or(configuration_.model.family),
                  trainer_->device_description());
  report.failure = failure;
  add_date(report);
  add_device(report, *trainer_);
  report.facts.push_back({"data", data_.description()});
  add_configuration(report, resolved_);
  report.steps = std::move(kept_steps_);
  report.evaluations = std::move(kept_evaluations_);
  if (evaluation_) report.facts.push_back({"evaluation", evaluation_->corpus().name()});
  if (!trainer_->refusal().empty()) report.notes.push_back("Not captured: " + trainer_->refusal());
  if (!options_.log || !options_.configuration.load) return report;
  // The log of a resumed run has the steps before it, too.
  ReportSources log;
  if (std::error_code ignored; std::filesystem::exists(*options_.log, ignored)) add_file(log, *options_.log);
  const std::int64_t first = report.steps.empty() ? trainer_->steps_done() + 1 : report.steps.front().step;
  std::erase_if(log.steps, [&](const ReportStep& step) { return step.step >= first; });
  std::erase_if(log.evaluations, [&](const ReportEvaluation& each) { return each.step >= first - 1; });
  report.steps.insert(report.steps.begin(), log.steps.begin(), log.steps.end());
  report.evaluations.insert(report.evaluations.begin(), log.evaluations.begin(), log.evaluations.end());
  return report;
}

}  // namespace encore::command
