// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/line_log.hpp>
#include <encore/model/replay_comparison.hpp>
#include <encore/model/trainer.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../device/session.hpp"
#include "console.hpp"
#include "data.hpp"
#include "options.hpp"
#include "progress.hpp"

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

  void add(const model::StepResult& result);
};

/// A training with its log and checkpoints.
class Training {
 public:
  /// Reads all files first, then makes the trainer. Throws what can be wrong with them.
  Training(const TrainOptions& options, Console& console);

  /// What is going to be trained, on what.
  std::string introduction() const;
  bool complete() const;

  /// Trains until all steps are done or a signal came; saves and finishes the log. Whatever it throws, the log holds
  /// the steps that were done. Returns the signal, or 0.
  int run();

  const TrainingTotals& totals() const { return totals_; }
  const model::Trainer& trainer() const { return *trainer_; }
  bool has_lengths() const { return data_.has_lengths(); }
  model::ReplayComparison compare(std::int64_t steps);
  graph::StepProfile profile();

 private:
  Training(const TrainOptions& options, Console& console, model::ResolvedConfiguration resolved);
  void train_step(Progress& progress);
  void write_log(const StepRecord& record);
  void note_refusal(Progress& progress, const model::StepResult& result);
  void require_finite(const model::StepResult& result) const;
  void save();
  int train_until_done(Progress& progress);

  const TrainOptions& options_;
  Console& console_;
  std::vector<std::string> notes_;
  model::Configuration configuration_;
  TrainingData data_;
  DeviceSession session_;
  std::unique_ptr<model::Trainer> trainer_;
  std::unique_ptr<model::LineLog> log_;
  std::int64_t saved_step_ = -1;
  bool refusal_noted_ = false;
  bool budget_noted_ = false;
  TrainingTotals totals_;
};

}  // namespace encore::command
