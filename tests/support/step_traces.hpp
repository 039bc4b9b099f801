// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trainers.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace encore::tests {

/// What every step of a training gives.
struct StepTrace {
  std::vector<double> losses, gradient_norms;
  std::vector<std::vector<std::byte>> gradients, weights;
  TrainingState last;
  graph::StepReport report;  ///< of the last step
  std::string refusal;
  std::size_t arena_bytes = 0;
};

inline std::vector<std::byte> all_of(model::Trainer& trainer, model::ParameterArray array) {
  std::vector<std::byte> all;
  for (const auto& slice : trainer.layout().slices()) {
    const auto bytes = trainer.read(array, slice);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

/// Trains on random_batch() of each step, with a learning rate that falls slowly.
inline StepTrace trace_steps(const model::Configuration& configuration, std::int64_t steps) {
  const auto trainer = model::make_trainer(configuration);
  StepTrace trace;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Batch batch = random_batch(configuration, step);
    trainer->set_batch(batch.ids, batch.labels);
    const auto result = trainer->step(0.01 / (1.0 + 0.05 * static_cast<double>(step)));
    trace.losses.push_back(result.loss);
    trace.gradient_norms.push_back(result.gradient_norm);
    trace.gradients.push_back(all_of(*trainer, model::ParameterArray::gradients));
    trace.weights.push_back(all_of(*trainer, model::ParameterArray::weights));
    trace.report = result.report;
  }
  trace.last = state_of(*trainer);
  trace.refusal = trainer->refusal();
  trace.arena_bytes = trainer->memory_plan().arena_bytes;
  return trace;
}

/// Empty when all numbers of all steps are the same bit for bit, or the first that is not.
inline std::string first_difference(const StepTrace& a, const StepTrace& b) {
  if (a.losses.size() != b.losses.size()) return "number of steps";
  for (std::size_t step = 0; step < a.losses.size(); ++step) {
    const std::string of_step = " of step " + std::to_string(step + 1);
    if (a.losses[step] != b.losses[step]) return "loss" + of_step;
    if (a.gradients[step] != b.gradients[step]) return "gradients" + of_step;
    if (a.gradient_norms[step] != b.gradient_norms[step]) return "gradient norm" + of_step;
    if (a.weights[step] != b.weights[step]) return "weights" + of_step;
  }
  return a.last == b.last ? "" : "state after the last step";
}

}  // namespace encore::tests
