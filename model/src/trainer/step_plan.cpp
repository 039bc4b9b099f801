// SPDX-License-Identifier: Apache-2.0
#include <encore/model/rank_plan.hpp>
#include <encore/model/step_plan.hpp>

#include <encore/backend/error.hpp>
#include <encore/backend/planned_transport.hpp>

#include <fmt/format.h>

#include <array>
#include <memory>

#include "kernel_labels.hpp"
#include "shaped_step.hpp"

namespace encore::model {

namespace {

enum class Purpose { training, evaluation };

using TransportLogs = std::array<std::shared_ptr<backend::TransportLog>, rank_groups>;

/// The groups that training needs; what is asked of them goes into `logs`, if there are any.
template <class Space>
void join_planned_groups(backend::Device<Space>& device, const ModelShard& shard, const TransportLogs* logs) {
  for (int index = 0; index < rank_groups; ++index) {
    const auto group = static_cast<RankGroup>(index);
    // Ranks of a job have their world in any case.
    const bool of_job = group == RankGroup::world && logs != nullptr && shard.layout.ranks() > 1;
    if (!shard.layout.needs(group) && !of_job) continue;
    device.join(
        std::string(name_of(group)),
        backend::planned_transport(static_cast<int>(shard.layout.size(group)),
                                   static_cast<int>(shard.layout.rank_in(group, shard.place)),
                                   logs == nullptr ? nullptr : (*logs)[static_cast<std::size_t>(index)]));
  }
}

template <class Space, class T, class G>
StepPlan plan_training(backend::Device<Space>& device, const Configuration& configuration,
                       const ParameterLayout& layout, KernelLabels labels,
                       std::vector<backend::LaunchRecord>* launches = nullptr) {
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
      plan.kernels = kernels_of(device, shaped->step.program, shaped->plan, launches);
    plan.outline = shaped->outline();
    plan.memory = shaped->plan;
  }
  return plan;
}

template <class Space, class T, class G>
StepPlan plan_for(Purpose purpose, const Configuration& configuration, const ModelShard& shard,
                  KernelLabels labels) {
  const TrainConfiguration& train = configuration.train;
  backend::Device<Space> device(static_cast<std::uint64_t>(configuration.seed));
  join_planned_groups(device, shard, nullptr);
  const ParameterLayout layout(configuration.model, train.decay_all, shard);
  if (purpose == Purpose::training) return plan_training<Space, T, G>(device, configuration, layout, labels);
  StepPlan plan;
  plan.outline = build_step_program<Space, T, G>(device, configuration.model, layout,
                                                 {1, train.microbatch, train.seq, false})
                     .program.outline();
  plan.memory = graph::plan_memory(plan.outline);
  return plan;
}

template <class Space, class T, class G>
RankPlan plan_rank_for(const Configuration& configuration, std::int64_t rank) {
  backend::Device<Space> device(static_cast<std::uint64_t>(configuration.seed));
  RankPlan plan;
  plan.shard = shard_of(configuration.parallel, true, rank);
  TransportLogs logs;
  for (auto& log : logs) log = std::make_shared<backend::TransportLog>();
  join_planned_groups(device, plan.shard, &logs);
  const ParameterLayout layout(configuration.model, configuration.train.decay_all, plan.shard);
  std::vector<backend::LaunchRecord> launches;
  plan.step = plan_training<Space, T, G>(device, configuration, layout, KernelLabels::collect, &launches);
  for (const backend::LaunchRecord& launch : launches) plan.kernels.push_back({launch.flops, launch.bytes});
  for (std::size_t group = 0; group < logs.size(); ++group) plan.operations[group] = *logs[group];
  plan.memory = forecast_memory(configuration, plan.step.outline, plan.step.memory, 0);
  return plan;
}

/// Calls `plan.operator()<Space, T, G>()` for the types of the configuration.
template <class Space, class Plan>
auto with_types(const Configuration& configuration, const Plan& plan) {
  using backend::bfloat16;
  if (configuration.train.precision == Precision::fp32)
    return plan.template operator()<Space, float, float>();
  if (configuration.train.gradient_type == Precision::bf16)
    return plan.template operator()<Space, bfloat16, bfloat16>();
  return plan.template operator()<Space, bfloat16, float>();
}

/// The same for those of its backend too.
template <class Plan>
auto with_backend(const Configuration& configuration, const Plan& plan) {
  check(configuration);
  switch (configuration.backend) {
    case BackendKind::serial: ENCORE_IF_SERIAL(return with_types<Kokkos::Serial>(configuration, plan);) break;
    case BackendKind::openmp: ENCORE_IF_OPENMP(return with_types<Kokkos::OpenMP>(configuration, plan);) break;
    case BackendKind::cuda: ENCORE_IF_CUDA(return with_types<Kokkos::Cuda>(configuration, plan);) break;
  }
  throw DeviceError(
      fmt::format("this build has no {} backend: configure it with a Kokkos that has it, or choose "
                  "another --backend",
                  name_of(configuration.backend)));
}

StepPlan plan(Purpose purpose, const Configuration& configuration, const ModelShard& shard,
              KernelLabels labels) {
  return with_backend(configuration, [&]<class Space, class T, class G>() {
    return plan_for<Space, T, G>(purpose, configuration, shard, labels);
  });
}

}  // namespace

RankPlan plan_rank(const Configuration& configuration, std::int64_t rank) {
  return with_backend(configuration, [&]<class Space, class T, class G>() {
    return plan_rank_for<Space, T, G>(configuration, rank);
  });
}

StepPlan plan_step(const Configuration& configuration, KernelLabels labels) {
  return plan_step(configuration, first_shard(configuration.parallel), labels);
}

StepPlan plan_step(const Configuration& configuration, const ModelShard& shard, KernelLabels labels) {
  return plan(Purpose::training, configuration, shard, labels);
}

StepPlan plan_evaluation(const Configuration& configuration, const ModelShard& shard) {
  return plan(Purpose::evaluation, configuration, shard, KernelLabels::leave_out);
}

graph::CapturePolicy capture_policy_of(const Configuration& configuration) {
  return policy_of(configuration.graph);
}

}  // namespace encore::model
