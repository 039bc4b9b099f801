// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/policy.hpp>
#include <encore/model/files/configuration.hpp>
#include <encore/model/step_plan.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace encore::model {

/// What a trainer's memory is for. The first seven are the kinds of buffers of its program.
enum class MemoryUse {
  parameter,
  gradient,
  optimizer_state,
  input,
  scalar,
  metric,
  state,          ///< tables, such as those of rotary positions
  arena,          ///< activations, whose memory is reused inside a step
  random_states,  ///< of the named random streams
  workspaces,     ///< of vendor libraries
  staging,        ///< from which the device copies; on CUDA this is host memory and counts nowhere
  alignment,      ///< lost because every allocation begins at a multiple of 256 bytes
  evaluation,     ///< arena, logits and batch of the evaluation program, once there is one
  graphs          ///< estimated: what the recordings take of a device; nothing on hosts
};
inline constexpr std::size_t memory_uses = 14;
std::string_view name_of(MemoryUse use);

/// Bytes in the memory of a configuration's backend.
struct MemoryForecast {
  std::array<std::size_t, memory_uses> bytes{};

  std::size_t& operator[](MemoryUse use) { return bytes[static_cast<std::size_t>(use)]; }
  std::size_t operator[](MemoryUse use) const { return bytes[static_cast<std::size_t>(use)]; }
  /// All of it.
  std::size_t total() const;
  /// Without the estimated part: exactly what is allocated.
  std::size_t allocated() const { return total() - (*this)[MemoryUse::graphs]; }
};

enum class ForecastEvaluation { leave_out, include };

/// What a trainer of this configuration will use, found without using it: on the first rank, with all stages of a
/// pipeline in turn. Throws as plan_step does.
MemoryForecast forecast_memory(const Configuration& configuration,
                               ForecastEvaluation evaluation = ForecastEvaluation::leave_out);
/// The same for what a rank of a job has of the model.
MemoryForecast forecast_memory(const Configuration& configuration, const ModelShard& shard,
                               ForecastEvaluation evaluation = ForecastEvaluation::leave_out);
/// The same from a plan with kernel labels that was made already.
MemoryForecast forecast_memory(const Configuration& configuration, const StepPlan& plan);
/// The same from a program and its plan. `graph_nodes`: kernels in recorded runs.
MemoryForecast forecast_memory(const Configuration& configuration, const graph::Outline& outline,
                               const graph::MemoryPlan& plan, std::size_t graph_nodes);

/// What a step over train.expert_budget takes beside all this while it is done again eagerly; 0 where there is none.
/// Not part of the forecast: it is found or refused when such a step comes.
std::size_t memory_over_budget(const Configuration& configuration);

/// Whether what is recorded takes memory of the device, so that its kernels have to be counted.
bool recordings_take_memory(const Configuration& configuration);

/// Kernels that the captured ones of these runs hold; `kernels` by segment.
std::size_t captured_kernels(const std::vector<graph::Run>& runs,
                             const std::vector<std::vector<std::string>>& kernels);

/// Bytes of weights, gradients and optimizer state of a rank alone: a bound from below that needs no plan.
std::size_t least_memory(const Configuration& configuration, const ModelShard& shard = {});

/// The configuration with another policy and the details that the policy then needs.
Configuration with_policy(const Configuration& configuration, GraphImplementation implementation);

/// A configuration that trains the same model on as many tokens a step with less memory.
struct SmallerPolicy {
  std::string change;  ///< as after --set: `train.microbatch=2 train.microbatches=4`
  Configuration configuration;
};
/// From the smallest change to the largest; the last one combines everything. All ranks of a job must change alike.
std::vector<SmallerPolicy> smaller_policies(const Configuration& configuration);

/// Throws OutOfMemoryError when least_memory() alone is above graph.memory_limit or above what is free, and no
/// smaller policy changes that. To be called before anything is planned: the plan of a model that is much too
/// large takes its time.
void require_memory_for_parameters(const Configuration& configuration, const ModelShard& shard);

/// Throws OutOfMemoryError when `needed` is above graph.memory_limit or above what is free, naming the smallest
/// change of policy that fits, with what a rank of that shard needs then, or else the least that any of them needs.
void require_memory(const Configuration& configuration, const ModelShard& shard,
                    const MemoryForecast& needed);

}  // namespace encore::model
