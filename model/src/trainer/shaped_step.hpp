// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/boundary_checks.hpp>
#include <encore/graph/executor.hpp>
#include <encore/graph/memory_plan.hpp>
#include <encore/model/step_program.hpp>
#include <encore/model/trainer.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace encore::model {

/// Batches that may be on their way to the device at a time.
inline constexpr std::size_t batch_slots = 4;
/// What a step reports, each float64. Those behind the gradient norm are there in models with experts alone.
enum class Metric { loss, label_count, gradient_norm, balance_loss, z_loss, rows_needed, over_budget };
inline constexpr std::size_t all_metrics = 7;
inline std::size_t metric_count(const ModelConfiguration& model) {
  return has_block(model, Block::experts) ? all_metrics : 3;
}

inline graph::CapturePolicy policy_of(const GraphConfiguration& configuration) {
  graph::CapturePolicy policy;
  policy.scope = static_cast<graph::CaptureScope>(configuration.impl);
  policy.optimizer = static_cast<graph::OptimizerCapture>(configuration.optimizer);
  policy.warmup_steps = configuration.warmup_steps;
  policy.recapture = configuration.recapture;
  using enum graph::Module;
  for (const GraphModule module : configuration.modules) switch (module) {
      case GraphModule::attn: policy.modules.insert(attn); break;
      case GraphModule::mlp: policy.modules.insert(mlp); break;
      case GraphModule::moe:
        policy.modules.insert({moe_router, moe_preprocess, moe_experts, moe_combine});
        break;
      case GraphModule::moe_router: policy.modules.insert(moe_router); break;
      case GraphModule::moe_preprocess: policy.modules.insert(moe_preprocess); break;
      case GraphModule::mamba: policy.modules.insert(mamba); break;
    }
  return policy;
}

/// Whether weights may be updated before the norm of all gradients is known.
inline bool update_needs_norm(const Configuration& configuration) {
  const TrainConfiguration& train = configuration.train;
  const ParallelConfiguration& parallel = configuration.parallel;
  // Where ranks have different gradients their norm takes an operation of all, which nothing can overlap.
  if (parallel.tensor > 1 || parallel.expert > 1 || parallel.shard_optimizer) return true;
  return train.clip > 0 || train.skip_above > 0 ||
         (has_block(configuration.model, Block::experts) && train.expert_budget < 1);
}

inline StepShape training_shape_of(const Configuration& configuration) {
  const TrainConfiguration& train = configuration.train;
  return {train.microbatches,
          train.microbatch,
          train.seq,
          true,
          train.optimizer_state == Precision::bf16 ? backend::DataType::bfloat16 : backend::DataType::float32,
          train.master_weights,
          configuration.parallel.pipeline,
          configuration.parallel.virtual_stages,
          train.recompute,
          train.delay_wgrad,
          {train.balance_loss > 0, train.router_z_loss > 0, train.router_jitter > 0, train.expert_capacity,
           train.expert_budget, configuration.parallel.expert_dispatch},
          update_needs_norm(configuration)};
}

/// The sequence lengths whose programs a trainer plans beforehand, the longest that will run first.
inline std::vector<std::int64_t> planned_lengths(const Configuration& configuration) {
  const GraphConfiguration& graph = configuration.graph;
  std::vector<std::int64_t> lengths(graph.buckets.rbegin(), graph.buckets.rend());
  const bool longer_run = lengths.empty() || graph.above_largest == AboveLargest::eager;
  if (longer_run && (lengths.empty() || lengths.front() != configuration.train.seq))
    lengths.insert(lengths.begin(), configuration.train.seq);
  return lengths;
}

/// How many lengths will be captured, as far as that is known beforehand.
inline std::size_t lengths_captured(const Configuration& configuration) {
  return std::max<std::size_t>(1, configuration.graph.buckets.size());
}

/// The boundary checks of a step's program.
struct StepBoundaries {
  graph::BufferId ring, slot;
  std::vector<std::string> names;
};

/// The program of a training step for one shape of batch, its memory plan, and what runs it.
template <class Space>
struct ShapedStep {
  BatchShape shape;
  StepProgram<Space> step;
  std::optional<StepBoundaries> boundaries;
  graph::MemoryPlan plan;
  std::unique_ptr<graph::Executor<Space>> executor;  ///< made when the shape is first used

  const graph::Outline& outline() const { return step.program.outline(); }
};

/// Plans and audits; touches no device memory. `needs_norm`: see StepShape, where not as configured.
template <class Space, class T, class G>
std::unique_ptr<ShapedStep<Space>> make_shaped_step(backend::Device<Space>& device,
                                                    const Configuration& configuration,
                                                    const ParameterLayout& layout, const BatchShape& shape,
                                                    std::optional<bool> needs_norm = std::nullopt) {
  StepShape step_shape = training_shape_of(configuration);
  step_shape.update_needs_norm = needs_norm.value_or(step_shape.update_needs_norm);
  step_shape.microbatches = shape.microbatches;
  step_shape.sequences = shape.sequences;
  step_shape.tokens = shape.tokens;
  // Batches whose tokens cannot be dealt out evenly are computed as without.
  const std::int64_t tensor_ranks = layout.shard().layout.tensor();
  step_shape.sequence_parallel = configuration.parallel.sequence && tensor_ranks > 1 &&
                                 shape.sequences * shape.tokens % tensor_ranks == 0;
  auto shaped = std::make_unique<ShapedStep<Space>>();
  shaped->shape = shape;
  shaped->step = build_step_program<Space, T, G>(device, configuration.model, layout, step_shape);
  if (configuration.graph.checksums) {
    auto checked = graph::with_boundary_checks(shaped->step.program);
    shaped->step.program = std::move(checked.program);
    shaped->boundaries = {checked.ring, checked.slot, std::move(checked.boundaries)};
  }
  shaped->plan = graph::plan_memory(shaped->outline());
  graph::audit(shaped->outline(), shaped->plan);
  return shaped;
}

}  // namespace encore::model
