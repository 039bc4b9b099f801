// SPDX-License-Identifier: Apache-2.0
#include "training.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/version.hpp>
#include <encore/model/checkpoint.hpp>
#include <encore/model/files/atomic_file.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <utility>

#include "configure.hpp"
#include "interruption.hpp"
#include "learning_rate.hpp"
#include "numbers.hpp"

namespace encore::command {

namespace {

using Clock = std::chrono::steady_clock;

std::int64_t tokens_of_step(const model::TrainConfiguration& train) {
  return train.microbatches * train.microbatch * train.seq;
}

/// Finds out before the first step, and not after the last, that a checkpoint could not be written.
void require_writable(const std::filesystem::path& file) { const model::AtomicFile probe(file); }

}  // namespace

void TrainingTotals::add(const model::StepResult& result) {
  ++steps;
  last_loss = result.loss;
  fallbacks += result.report.fallbacks;
  if (result.report.mode != graph::StepMode::replay) return;
  ++replayed;
  graph_nodes = result.report.graph_nodes;
  host_waits_in_replay += result.report.host_syncs + result.report.host_copies;
}

Training::Training(const TrainOptions& options, Console& console)
    : Training(options, console, resolve(options.configuration, "bytes")) {}

Training::Training(const TrainOptions& options, Console& console, model::ResolvedConfiguration resolved)
    : options_(options),
      console_(console),
      notes_(std::move(resolved.notes)),
      configuration_(std::move(resolved.configuration)),
      data_(options.data, configuration_),
      session_(options.threads),
      trainer_(model::make_trainer(configuration_)) {
  if (options.log && options.save && *options.log == *options.save)
    throw UsageError(fmt::format("--log and --save name the same file, '{}'", options.log->string()));
  if (options.save) require_writable(*options.save);
  std::int64_t steps_done = 0;
  if (options.configuration.load) {
    const model::LoadedCheckpoint loaded = model::load_checkpoint(*options.configuration.load, *trainer_);
    if (loaded.resumes) steps_done = loaded.steps_done;
  }
  if (!options.log) return;
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
                  model.family, model.layers, count_text(trainer_->layout().parameter_count()),
                  name_of(train.precision), name_of(configuration_.backend), trainer_->device_description());
  text += fmt::format("matrix products by {}\n", trainer_->blas_description());
  text += fmt::format("data: {}; {} tokens a step\n", data_.description(), tokens_of_step(train));
  text += fmt::format("memory: {}; graphs: {}",
                      bytes_text(static_cast<double>(trainer_->memory_plan().total_bytes())),
                      name_of(configuration_.graph.impl));
  if (trainer_->steps_done() > 0) text += fmt::format("\nresumed after step {}", trainer_->steps_done());
  for (const std::string& note : notes_) text += fmt::format("\nnote: {}", note);
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
  const Interruption interruption;
  const std::int64_t interval = configuration_.train.checkpoint_interval;
  while (!complete() && interruption.signal() == 0) {
    train_step(progress);
    if (interval > 0 && trainer_->steps_done() % interval == 0) save();
  }
  save();
  return interruption.signal();
}

void Training::train_step(Progress& progress) {
  const auto start = Clock::now();
  const std::int64_t done = trainer_->steps_done();
  data_.set_batch(done, *trainer_);
  const double rate = learning_rate(configuration_.train, done);
  model::StepResult result = trainer_->step(rate);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const double tokens_per_second = static_cast<double>(result.tokens) / seconds;
  const StepRecord record{
      .result = std::move(result), .learning_rate = rate, .tokens_per_second = tokens_per_second};
  totals_.add(record.result);
  write_log(record);
  progress.show(record);
  note_refusal(progress, record.result);
  require_finite(record.result);
}

void Training::write_log(const StepRecord& record) {
  if (!log_) return;
  try {
    log_->append(log_line(record, model::has_block(configuration_.model, model::Block::experts)));
  } catch (const OutputFileError&) {
    // The training is worth more than its log.
    require_finite(record.result);
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
  model::save_checkpoint(*options_.save, *trainer_);
  saved_step_ = trainer_->steps_done();
}

model::ReplayComparison Training::compare(std::int64_t steps) {
  const std::int64_t length = recorded_length(configuration_);
  return model::compare_eager_with_replay(
      *trainer_, steps,
      {.set_batch = [this, length](std::int64_t done,
                                   model::Trainer& trainer) { data_.set_batch(done, trainer, length); },
       .learning_rate = [this](std::int64_t done) { return learning_rate(configuration_.train, done); }});
}

graph::StepProfile Training::profile() {
  const std::int64_t done = trainer_->steps_done();
  data_.set_batch(done, *trainer_, recorded_length(configuration_));
  return trainer_->profile(learning_rate(configuration_.train, done), {});
}

}  // namespace encore::command
