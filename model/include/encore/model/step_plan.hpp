// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/memory_plan.hpp>
#include <encore/graph/outline.hpp>
#include <encore/graph/policy.hpp>
#include <encore/model/files/configuration.hpp>
#include <encore/model/files/rank_layout.hpp>

#include <string>
#include <vector>

namespace encore::model {

/// A training step of a configuration, known without running it. With several lengths in graph.buckets it is that of
/// the longest sequence that will run.
struct StepPlan {
  graph::Outline outline;
  graph::MemoryPlan memory;      ///< its arena serves all lengths
  std::vector<graph::Run> runs;  ///< under the configuration's capture policy
  std::vector<std::vector<std::string>>
      kernels;  ///< labels, by segment, in launch order; empty unless asked for
};

enum class KernelLabels { leave_out, collect };

/// Builds the step's program and plans its memory: that of the first rank, with all stages of a pipeline in turn.
/// Touches no more of the device than its handles need. Throws ConfigurationError, and DeviceError when this build lacks
/// the backend. Kokkos must be initialised.
StepPlan plan_step(const Configuration& configuration, KernelLabels labels = KernelLabels::leave_out);
/// The same for what a rank of a job has of the model.
StepPlan plan_step(const Configuration& configuration, const ModelShard& shard,
                   KernelLabels labels = KernelLabels::leave_out);

/// The same for the forward pass of one microbatch, as Trainer::evaluate runs it.
StepPlan plan_evaluation(const Configuration& configuration, const ModelShard& shard);

/// The capture policy that the configuration asks for.
graph::CapturePolicy capture_policy_of(const Configuration& configuration);

}  // namespace encore::model
