// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/line_log.hpp>
#include <encore/model/replay_comparison.hpp>
#include <encore/model/trainer.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../device/session.hpp"
#include "console.hpp"
#include "data.hpp"
#include "interruption.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "ranks.hpp"
#include "report/report.hpp"

namespace encore::command {

/// Sums over the steps of a run.
struct TrainingTotals {
  std::int64_t steps = 0;
  std::int64_t replayed = 0;
  double seconds = 0;
  double last_loss = 0;
  std::size_t graph_nodes = 0;           ///< of the last replayed step
  std::size_t host_waits_in_replay = 0;  ///< synchronizations and host copies inside replayed steps
  std::size_t fallbacks = 0;
  double capture_seconds = 0;

  void add(const model::StepResult& result);
};

/// A training with its log and checkpoints.
class Training {
 public:
  /// Reads all files first, then makes the trainer. Throws what can be wrong with them.
  Training(const TrainOptions& options, Console& console, const Seat& seat,
           const model::ResolvedConfiguration& resolved);

  /// What is going to be trained, on what.
  std::string introduction() const;
  bool complete() const;

  /// Trains until all steps are done or a signal came; saves and finishes the log. Whatever it throws, the log holds
  /// the steps that were done. Returns the signal, or 0.
  int run();

  const TrainingTotals& totals() const { return totals_; }
  const model::Trainer& trainer() const { return *trainer_; }
  bool has_lengths() const { return data_.has_lengths(); }
  /// With a report in blocks that are as short as a verdict needs.
  model::ReplayComparison compare(std::int64_t steps);
  graph::StepProfile profile();
  /// What a page tells of the steps so far; `failure`: why there are no more. Takes the kept steps away.
  Report take_report(const std::string& failure);

 private:
  void train_step(Progress& progress);
  void write_log(const StepRecord& record);
  void prepare_evaluation(Progress& progress);
  double evaluation_loss();
  std::optional<double> evaluate_if_due();
  void note_refusal(Progress& progress, const model::StepResult& result);
  void require_finite(const model::StepResult& result) const;
  void save();
  int train_until_done(Progress& progress);
  /// The signal that some rank got, as far as it is known to all.
  int signal_of_ranks(const std::optional<Interruption>& interruption);

  const TrainOptions& options_;
  Console& console_;
  const Seat& seat_;
  const model::ResolvedConfiguration& resolved_;
  const model::Configuration& configuration_;
  TrainingData data_;
  DeviceSession session_;
  std::unique_ptr<model::Trainer> trainer_;
  std::unique_ptr<model::LineLog> log_;
  std::exception_ptr log_failure_;  ///< of the first of several ranks, until all of them save
  std::optional<model::TokenSource> evaluation_;
  std::int64_t evaluate_every_ = 0;
  std::vector<ReportStep> kept_steps_;  ///< for a report
  std::vector<ReportEvaluation> kept_evaluations_;
  std::int64_t saved_step_ = -1;
  bool refusal_noted_ = false;
  bool budget_noted_ = false;
  TrainingTotals totals_;
};

}  // namespace encore::command
