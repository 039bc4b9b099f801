// SPDX-License-Identifier: Apache-2.0
#include <encore/model/step_plan.hpp>

#include <encore/backend/error.hpp>
#include <encore/backend/planned_transport.hpp>

#include <fmt/format.h>

#include "kernel_labels.hpp"
#include "shaped_step.hpp"

namespace encore::model {

namespace {

enum class Purpose { training, evaluation };

template <class Space, class T, class G>
StepPlan plan_training(backend::Device<Space>& device, const Configuration& configuration,
                       const ParameterLayout& layout, KernelLabels labels) {
  const TrainConfiguration& train = configuration.train;
  StepPlan plan;
  for (const std::int64_t length : planned_lengths(configuration)) {
    const auto shaped = make_shaped_step<Space, T, G>(device, configuration, layout,
                                                      {train.microbatches, train.microbatch, length});
    const bool is_main = plan.outline.segments().empty();
    if (!is_main) {
      plan.memory.arena_bytes = std::max(plan.memory.arena_bytes, shaped->plan.arena_bytes);
      continue;
    }
    plan.runs = graph::cut(shaped->outline(), policy_of(configuration.graph));
    if (labels == KernelLabels::collect)
      plan.kernels = kernels_of(device, shaped->step.program, shaped->plan);
    plan.outline = shaped->outline();
    plan.memory = shaped->plan;
  }
  return plan;
}

template <class Space, class T, class G>
StepPlan plan_for(Purpose purpose, const Configuration& configuration, KernelLabels labels) {
  const TrainConfiguration& train = configuration.train;
  backend::Device<Space> device(static_cast<std::uint64_t>(configuration.seed));
  // One rank's step, with all stages of a pipeline in turn.
  constexpr bool stages_apart = false;
  const RankLayout ranks(configuration.parallel, stages_apart);
  for (int index = 0; index < rank_groups; ++index) {
    const auto group = static_cast<RankGroup>(index);
    if (ranks.needs(group))
      device.join(std::string(name_of(group)),
                  backend::planned_transport(static_cast<int>(ranks.size(group))));
  }
  const ParameterLayout layout(configuration.model, train.decay_all,
                               shard_of(configuration.parallel, stages_apart, 0));
  if (purpose == Purpose::training) return plan_training<Space, T, G>(device, configuration, layout, labels);
  StepPlan plan;
  plan.outline = build_step_program<Space, T, G>(device, configuration.model, layout,
                                                 {1, train.microbatch, train.seq, false})
                     .program.outline();
  plan.memory = graph::plan_memory(plan.outline);
  return plan;
}

template <class Space>
StepPlan plan_on(Purpose purpose, const Configuration& configuration, KernelLabels labels) {
  using backend::bfloat16;
  if (configuration.train.precision == Precision::fp32)
    return plan_for<Space, float, float>(purpose, configuration, labels);
  if (configuration.train.gradient_type == Precision::bf16)
    return plan_for<Space, bfloat16, bfloat16>(purpose, configuration, labels);
  return plan_for<Space, bfloat16, float>(purpose, configuration, labels);
}

StepPlan plan(Purpose purpose, const Configuration& configuration, KernelLabels labels) {
  check(configuration);
  switch (configuration.backend) {
    case BackendKind::serial:
      ENCORE_IF_SERIAL(return plan_on<Kokkos::Serial>(purpose, configuration, labels);) break;
    case BackendKind::openmp:
      ENCORE_IF_OPENMP(return plan_on<Kokkos::OpenMP>(purpose, configuration, labels);) break;
    case BackendKind::cuda:
      ENCORE_IF_CUDA(return plan_on<Kokkos::Cuda>(purpose, configuration, labels);) break;
  }
  throw DeviceError(
      fmt::format("this build has no {} backend: configure it with a Kokkos that has it, or choose "
                  "another --backend",
                  name_of(configuration.backend)));
}

}  // namespace

StepPlan plan_step(const Configuration& configuration, KernelLabels labels) {
  return plan(Purpose::training, configuration, labels);
}

StepPlan plan_evaluation(const Configuration& configuration) {
  return plan(Purpose::evaluation, configuration, KernelLabels::leave_out);
}

graph::CapturePolicy capture_policy_of(const Configuration& configuration) {
  return policy_of(configuration.graph);
}

}  // namespace encore::model
