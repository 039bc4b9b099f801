// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_trainer.hpp"

#include <encore/backend/error.hpp>
#include <encore/graph/contract_rules.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

// What a trainer has for models with experts: their counts, the biases of their choice, and steps whose rows do not
// fit into what was recorded.

namespace encore::model {

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::allocate_for_experts() {
  const graph::Outline& outline = main_->outline();
  const StepProgram<Space>& step = main_->step;
  const auto allocate_cleared = [&](const char* label, std::size_t bytes) {
    backend::Allocation<Space> allocation(label, bytes);
    device_.stream().clear(allocation.data(), bytes, label);
    return allocation;
  };
  if (step.tokens_of_expert) {
    // A batch of another shape may have more microbatches, though not more than tokens.
    const std::int64_t layers = outline.buffer(*step.tokens_of_expert).shape[0];
    const std::int64_t rows =
        configuration_.graph.recapture ? main_->shape.elements() : main_->shape.microbatches;
    expert_counts_ = allocate_cleared("counts of experts",
                                      outline.buffer(*step.tokens_of_expert).bytes() +
                                          static_cast<std::size_t>(rows * layers) * sizeof(std::int32_t));
  }
  if (step.expert_bias)
    expert_bias_ =
        allocate_cleared("biases of the choice of experts", outline.buffer(*step.expert_bias).bytes());
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::bind_experts(const StepProgram<Space>& step,
                                              graph::Bindings& bindings) const {
  if (step.expert_bias) bindings.bind(*step.expert_bias, expert_bias_.data());
  if (!step.tokens_of_expert) return;
  const auto metric = [&](Metric of) {
    return metrics_.data() + static_cast<std::size_t>(of) * sizeof(double);
  };
  bindings.bind(*step.balance_loss, metric(Metric::balance_loss));
  bindings.bind(*step.z_loss, metric(Metric::z_loss));
  bindings.bind(*step.over_budget, metric(Metric::rows_needed));
  bindings.bind(*step.tokens_of_expert, expert_counts_.data());
  bindings.bind(*step.rows_needed,
                expert_counts_.data() + main_->outline().buffer(*main_->step.tokens_of_expert).bytes());
}

template <class Space, class T, class G>
std::vector<std::int32_t> DeviceTrainer<Space, T, G>::tokens_of_experts() {
  if (!main_->step.tokens_of_expert) return {};
  const graph::Buffer& buffer = main_->outline().buffer(*main_->step.tokens_of_expert);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(buffer.elements()));
  device_.stream().copy_to_host(counts.data(), expert_counts_.data(), buffer.bytes(), "counts of experts");
  device_.stream().synchronize("counts of experts");
  return counts;
}

/// The device has left weights, moments and biases as they were. The same random numbers are drawn again, by a program
/// that keeps as many rows as there can be, in memory of its own that is given back afterwards.
template <class Space, class T, class G>
StepResult DeviceTrainer<Space, T, G>::step_over_budget(double learning_rate, StepResult within_budget,
                                                        bool eagerly) {
  auto& stream = device_.stream();
  std::vector<backend::RandomState> random = device_.random().snapshot(stream);
  for (backend::RandomState& state : random) --state.offset;
  device_.random().restore(stream, random);
  --steps_done_;
  --steps_here_;

  const std::string reason = fmt::format(
      "{}: the experts of a layer needed {:.4g} times topk rows a token and train.expert_budget = {} keeps "
      "fewer: {:.4g} would have been enough",
      graph::rule_budget.id, within_budget.expert_rows_needed, configuration_.train.expert_budget,
      std::ceil(within_budget.expert_rows_needed * 1e4) / 1e4);
  Configuration whole = configuration_;
  whole.train.expert_budget = 1;
  const auto shaped = make_shaped_step<Space, T, G>(device_, whole, layout_, current_->shape,
                                                    update_needs_norm(configuration_));
  require_memory_over_budget(shaped->plan.arena_bytes, reason);
  const backend::Allocation<Space> arena("arena of a step over budget", shaped->plan.arena_bytes);
  graph::Executor<Space> executor(device_, shaped->step.program, bind(*shaped, arena.data()),
                                  graph::CapturePolicy{});
  StepResult result = run_step(learning_rate, executor, true);
  result.over_budget = true;
  result.milliseconds += within_budget.milliseconds;
  result.device_milliseconds += within_budget.device_milliseconds;
  result.eager_reason = reason;
  if (!eagerly && configuration_.graph.impl != GraphImplementation::none) ++result.report.fallbacks;
  stream.synchronize("a step over budget");  // Its memory goes.
  return result;
}

template <class Space, class T, class G>
void DeviceTrainer<Space, T, G>::require_memory_over_budget(std::size_t bytes,
                                                            const std::string& reason) const {
  const std::string remedy = "raise train.expert_budget, or make the microbatch smaller";
  const auto limit = static_cast<std::size_t>(configuration_.graph.memory_limit);
  if (limit > 0 && allocated_bytes_ + bytes > limit)
    throw OutOfMemoryError(
        fmt::format("{}; doing this step again eagerly needs {} bytes beside the {} of training and "
                    "graph.memory_limit allows {}: raise it, {}",
                    reason, bytes, allocated_bytes_, limit, remedy));
  if (const std::size_t available = backend::available_memory<Space>(); bytes > available)
    throw OutOfMemoryError(fmt::format("{}; doing this step again eagerly needs {} bytes and {} are free: {}",
                                       reason, bytes, available, remedy));
}

}  // namespace encore::model
