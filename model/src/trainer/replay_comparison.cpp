// SPDX-License-Identifier: Apache-2.0
#include <encore/model/replay_comparison.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "training_state.hpp"

namespace encore::model {

namespace {

constexpr std::int64_t block_steps = 5;

struct Pass {
  std::vector<StepResult> results;
  TrainingState end;
};

StepResult one_step(Trainer& trainer, const StepInputs& inputs, bool eagerly) {
  const std::int64_t done = trainer.steps_done();
  inputs.set_batch(done, trainer);
  const double rate = inputs.learning_rate(done);
  return eagerly ? trainer.step_eagerly(rate) : trainer.step(rate);
}

/// Empty when the trainer replays from now on, else why it does not.
std::string make_graphs(Trainer& trainer, const StepInputs& inputs) {
  const GraphConfiguration& graph = trainer.configuration().graph;
  if (graph.impl == GraphImplementation::none) return "graph.impl is none";
  // The warm-up, the step that captures, and the first that replays.
  for (std::int64_t step = 0; step < graph.warmup_steps + 2; ++step) {
    if (!trainer.refusal().empty()) return trainer.refusal();
    if (one_step(trainer, inputs, false).report.mode == graph::StepMode::replay) return {};
  }
  return trainer.refusal().empty() ? "the policy captures nothing of this step" : trainer.refusal();
}

Pass run_block(Trainer& trainer, const TrainingState& start, std::int64_t steps, const StepInputs& inputs,
               bool eagerly) {
  write_state(trainer, start);
  Pass pass;
  for (std::int64_t step = 0; step < steps; ++step)
    pass.results.push_back(one_step(trainer, inputs, eagerly));
  pass.end = read_state(trainer);
  return pass;
}

bool same_bits(double left, double right) {
  return std::bit_cast<std::uint64_t>(left) == std::bit_cast<std::uint64_t>(right);
}

std::string first_difference(const ParameterLayout& layout, const Pass& eager, const Pass& replay) {
  for (std::size_t i = 0; i < eager.results.size(); ++i) {
    const StepResult& one = eager.results[i];
    const StepResult& other = replay.results[i];
    if (other.report.mode != graph::StepMode::replay)
      return fmt::format("step {} was not replayed", other.step);
    if (!same_bits(one.loss, other.loss))
      return fmt::format("the loss of step {} is {:.17g} eagerly and {:.17g} by replay", one.step, one.loss,
                         other.loss);
    if (!same_bits(one.gradient_norm, other.gradient_norm))
      return fmt::format("the gradient norm of step {} is {:.17g} eagerly and {:.17g} by replay", one.step,
                         one.gradient_norm, other.gradient_norm);
  }
  const std::string difference = first_difference(layout, eager.end, replay.end);
  return difference.empty() ? "" : fmt::format("after step {} {}", eager.end.steps_done, difference);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

void append_times(std::vector<double>& times, const Pass& pass) {
  for (const StepResult& result : pass.results) times.push_back(result.milliseconds);
}

}  // namespace

ReplayComparison compare_eager_with_replay(Trainer& trainer, std::int64_t steps, const StepInputs& inputs) {
  ReplayComparison comparison;
  const TrainingState before = read_state(trainer);
  comparison.why_not = make_graphs(trainer, inputs);
  if (comparison.why_not.empty()) {
    std::vector<double> eager_times, replay_times;
    TrainingState start = before;
    bool eager_first = true;
    while (comparison.steps < steps && comparison.difference.empty()) {
      const std::int64_t count = std::min(block_steps, steps - comparison.steps);
      Pass first = run_block(trainer, start, count, inputs, eager_first);
      Pass second = run_block(trainer, start, count, inputs, !eager_first);
      const Pass& eager = eager_first ? first : second;
      const Pass& replay = eager_first ? second : first;
      comparison.difference = first_difference(trainer.layout(), eager, replay);
      append_times(eager_times, eager);
      append_times(replay_times, replay);
      comparison.steps += count;
      start = std::move(first.end);
      eager_first = !eager_first;
    }
    comparison.eager_milliseconds = median(std::move(eager_times));
    comparison.replay_milliseconds = median(std::move(replay_times));
  }
  write_state(trainer, before);
  return comparison;
}

}  // namespace encore::model
