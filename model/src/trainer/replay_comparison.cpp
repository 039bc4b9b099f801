// SPDX-License-Identifier: Apache-2.0
#include <encore/model/replay_comparison.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>

#include "training_state.hpp"

namespace encore::model {

namespace {

struct Pass {
  std::vector<StepResult> results;
  std::unique_ptr<SavedState> end;
};

/// Waits that the steps' times include. The same ones each time, so that a comparison can be repeated.
class Noise {
 public:
  explicit Noise(double most_milliseconds) : most_(most_milliseconds) {}

  /// Keeps the processor busy and returns for how many milliseconds.
  double add() {
    if (most_ <= 0) return 0;
    using Clock = std::chrono::steady_clock;
    using Milliseconds = std::chrono::duration<double, std::milli>;
    const double wanted = std::uniform_real_distribution<double>(0, most_)(generator_);
    const auto start = Clock::now();
    Milliseconds passed{};
    while (passed.count() < wanted) passed = Clock::now() - start;
    return passed.count();
  }

 private:
  double most_;
  std::mt19937_64 generator_{1};
};

StepResult one_step(Trainer& trainer, const StepInputs& inputs, bool eagerly) {
  const std::int64_t done = trainer.steps_done();
  inputs.set_batch(done, trainer);
  const double rate = inputs.learning_rate(done);
  return eagerly ? trainer.step_eagerly(rate) : trainer.step(rate);
}

/// Ranks of a job tell each other; a trainer without ranks knows by itself.
bool on_any_rank(Trainer& trainer, bool here) { return trainer.largest_of_ranks(here ? 1 : 0) != 0; }

/// Steps until the trainer replays. Sets why_not when it does not, and what the capture cost.
void make_graphs(Trainer& trainer, const StepInputs& inputs, ReplayComparison& comparison) {
  const GraphConfiguration& graph = trainer.configuration().graph;
  if (graph.impl == GraphImplementation::none) {
    comparison.why_not = "graph.impl is none";
    return;
  }
  // The step that captures, and the first that replays. All ranks of a job do as many.
  bool refused = on_any_rank(trainer, !trainer.refusal().empty());
  bool captures = refused;
  for (int step = 0; step < 2 && !refused; ++step) {
    inputs.set_batch(trainer.steps_done(), trainer);
    trainer.end_warmup();
    const graph::StepReport report = one_step(trainer, inputs, false).report;
    comparison.capture_seconds += report.capture_seconds;
    comparison.graph_bytes += report.graph_bytes;
    refused = on_any_rank(trainer, !trainer.refusal().empty());
    // Of some policies a stage captures nothing, and the others go on: then none compares.
    if (!on_any_rank(trainer, report.mode != graph::StepMode::replay)) return;
    captures = captures || report.mode != graph::StepMode::eager;
  }
  comparison.why_not = !trainer.refusal().empty() ? trainer.refusal()
                       : captures                 ? "another rank runs its steps eagerly"
                                                  : "the policy captures nothing of this step";
}

Pass run_block(Trainer& trainer, const SavedState& start, std::int64_t steps, const StepInputs& inputs,
               bool eagerly, Noise& noise) {
  trainer.restore_state(start);
  Pass pass;
  for (std::int64_t step = 0; step < steps; ++step) {
    pass.results.push_back(one_step(trainer, inputs, eagerly));
    pass.results.back().milliseconds += noise.add();
  }
  pass.end = trainer.save_state();
  return pass;
}

bool same_bits(double left, double right) {
  return std::bit_cast<std::uint64_t>(left) == std::bit_cast<std::uint64_t>(right);
}

/// What differs between two states, found on the host. Ranks of a job call it together.
std::string state_difference(Trainer& trainer, const SavedState& left, const SavedState& right) {
  trainer.restore_state(left);
  const TrainingState one = read_state(trainer);
  trainer.restore_state(right);
  return first_difference(trainer.layout(), one, read_state(trainer));
}

std::string difference_of_results(const Pass& eager, const Pass& replay) {
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
  return {};
}

/// Empty on all ranks of a job, or on none.
std::string first_difference(Trainer& trainer, const Pass& eager, const Pass& replay) {
  const std::string of_results = difference_of_results(eager, replay);
  const bool differs = !of_results.empty() || !eager.end->same_as(*replay.end);
  if (!on_any_rank(trainer, differs)) return {};
  const std::string of_states = state_difference(trainer, *eager.end, *replay.end);
  if (!of_results.empty()) return of_results;
  if (!differs) return "on another rank the replayed steps differ from the eager ones";
  return fmt::format("after step {} {}", eager.end->steps_done, of_states);
}

std::vector<double> times_of(const Pass& pass) {
  std::vector<double> times;
  for (const StepResult& result : pass.results) times.push_back(result.milliseconds);
  return times;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double largest_loss_difference(const Pass& eager, const Pass& replay) {
  double largest = 0;
  for (std::size_t i = 0; i < eager.results.size(); ++i)
    largest = std::max(largest, std::abs(eager.results[i].loss - replay.results[i].loss));
  return largest;
}

void append(std::vector<double>& list, const std::vector<double>& values) {
  list.insert(list.end(), values.begin(), values.end());
}

}  // namespace

ReplayComparison compare_eager_with_replay(Trainer& trainer, std::int64_t steps, const StepInputs& inputs,
                                           const ComparisonOptions& options) {
  ReplayComparison comparison;
  const std::unique_ptr<SavedState> before = trainer.save_state();
  make_graphs(trainer, inputs, comparison);
  if (comparison.why_not.empty()) {
    std::vector<double> eager_times, replay_times;
    std::unique_ptr<SavedState> last;  // where the next pair of blocks begins
    Noise noise(options.noise_milliseconds);
    bool eager_first = true;
    while (comparison.steps < steps && comparison.difference.empty()) {
      const std::int64_t count =
          std::min(std::max<std::int64_t>(1, options.block_steps), steps - comparison.steps);
      const SavedState& start = last ? *last : *before;
      Pass first = run_block(trainer, start, count, inputs, eager_first, noise);
      const Pass second = run_block(trainer, start, count, inputs, !eager_first, noise);
      const Pass& eager = eager_first ? first : second;
      const Pass& replay = eager_first ? second : first;
      comparison.difference = first_difference(trainer, eager, replay);
      comparison.loss_difference =
          std::max(comparison.loss_difference, largest_loss_difference(eager, replay));
      comparison.graph_nodes = replay.results.back().report.graph_nodes;
      comparison.eager_launches = eager.results.back().report.eager_launches;
      append(eager_times, times_of(eager));
      append(replay_times, times_of(replay));
      comparison.blocks.eager.push_back(mean(times_of(eager)));
      comparison.blocks.replay.push_back(mean(times_of(replay)));
      comparison.steps += count;
      last = std::move(first.end);
      eager_first = !eager_first;
    }
    comparison.eager_milliseconds = graph::median(std::move(eager_times));
    comparison.replay_milliseconds = graph::median(std::move(replay_times));
  }
  trainer.restore_state(*before);
  return comparison;
}

}  // namespace encore::model
