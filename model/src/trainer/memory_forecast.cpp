// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/blas_workspace.hpp>
#include <encore/backend/random_tracker.hpp>
#include <encore/graph/scalars.hpp>
#include <encore/model/memory_forecast.hpp>

#include <numeric>

#include "shaped_step.hpp"

namespace encore::model {

namespace {

constexpr std::size_t alignment = graph::MemoryPlan::alignment;

/// What a recorded kernel is taken to need of the device: an assumption that no measurement supports yet, since the
/// driver hands memory out in large blocks. `encore ab` tells what a capture really took. On hosts a recording is
/// bookkeeping of some hundred bytes a kernel, as the program itself is.
constexpr std::size_t cuda_node_bytes = 4096;

std::size_t workspace_bytes(BackendKind backend) {
  switch (backend) {
    case BackendKind::serial: ENCORE_IF_SERIAL(return backend::blas_workspace_bytes<Kokkos::Serial>();) break;
    case BackendKind::openmp: ENCORE_IF_OPENMP(return backend::blas_workspace_bytes<Kokkos::OpenMP>();) break;
    case BackendKind::cuda: ENCORE_IF_CUDA(return backend::blas_workspace_bytes<Kokkos::Cuda>();) break;
  }
  return 0;
}

std::size_t bytes_of(const graph::MemoryPlan& plan, graph::BufferKind kind) {
  return plan.bytes_by_kind[static_cast<std::size_t>(kind)];
}

std::size_t evaluation_bytes(const Configuration& configuration, const ModelShard& shard) {
  using graph::BufferKind;
  const StepPlan plan = plan_evaluation(configuration, shard);
  constexpr std::size_t allocations = 3;
  return plan.memory.arena_bytes + bytes_of(plan.memory, BufferKind::metric) +
         bytes_of(plan.memory, BufferKind::input) + allocations * alignment;
}

}  // namespace

std::size_t memory_over_budget(const Configuration& configuration) {
  if (!has_block(configuration.model, Block::experts) || configuration.train.expert_budget >= 1) return 0;
  Configuration whole = configuration;
  whole.train.expert_budget = 1;
  return plan_step(whole, KernelLabels::leave_out).memory.arena_bytes;
}

std::string_view name_of(MemoryUse use) {
  constexpr std::array<std::string_view, memory_uses> names{
      "parameter", "gradient",      "optimizer_state", "input",   "scalar",    "metric",     "state",
      "arena",     "random_states", "workspaces",      "staging", "alignment", "evaluation", "graphs"};
  return names[static_cast<std::size_t>(use)];
}

std::size_t MemoryForecast::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
}

bool recordings_take_memory(const Configuration& configuration) {
  return configuration.backend == BackendKind::cuda && configuration.graph.impl != GraphImplementation::none;
}

std::size_t captured_kernels(const std::vector<graph::Run>& runs,
                             const std::vector<std::vector<std::string>>& kernels) {
  std::size_t count = 0;
  for (const graph::Run& run : runs)
    if (run.captured)
      for (std::size_t index = run.first; index < run.end; ++index) count += kernels.at(index).size();
  return count;
}

MemoryForecast forecast_memory(const Configuration& configuration, const graph::Outline& outline,
                               const graph::MemoryPlan& plan, std::size_t graph_nodes) {
  using graph::BufferKind;
  using enum MemoryUse;
  const bool host = configuration.backend != BackendKind::cuda;
  MemoryForecast forecast;
  forecast[parameter] = bytes_of(plan, BufferKind::parameter);
  forecast[gradient] = bytes_of(plan, BufferKind::gradient);
  forecast[optimizer_state] = bytes_of(plan, BufferKind::optimizer_state);
  forecast[input] = bytes_of(plan, BufferKind::input);
  forecast[scalar] = bytes_of(plan, BufferKind::scalar);
  forecast[metric] = bytes_of(plan, BufferKind::metric);
  // With recapture a batch may have as many microbatches as tokens, each with counts of its own.
  if (const auto rows = outline.find_buffer("rows_needed"); rows && configuration.graph.recapture) {
    const graph::Buffer& buffer = outline.buffer(*rows);
    const TrainConfiguration& train = configuration.train;
    const std::int64_t most = train.microbatches * train.microbatch * train.seq;
    forecast[metric] += buffer.bytes() / static_cast<std::size_t>(buffer.shape[0]) *
                        static_cast<std::size_t>(most - buffer.shape[0]);
  }
  forecast[state] = bytes_of(plan, BufferKind::state);
  forecast[arena] = plan.arena_bytes;
  forecast[random_states] =
      backend::RandomTracker<Kokkos::DefaultHostExecutionSpace>::capacity * sizeof(backend::RandomState);
  forecast[workspaces] = workspace_bytes(configuration.backend);
  if (host)
    forecast[staging] = batch_slots * forecast[input] + graph::scalar_slots * forecast[scalar] +
                        metric_count(configuration.model) * sizeof(double);
  // One allocation for each array of parameters' shape, and one for the inputs, the scalars, the metrics, the
  // tables, the arena, the random states, the vendor's workspace, the ring of checksums and its position.
  std::size_t allocations = 6 + (forecast[workspaces] > 0 ? 1 : 0) + (configuration.graph.checksums ? 2 : 0);
  if (has_block(configuration.model, Block::experts)) ++allocations;  // the counts
  for (const graph::Buffer& buffer : outline.buffers())
    if (!buffer.part && (buffer.kind == BufferKind::parameter || buffer.kind == BufferKind::gradient ||
                         buffer.kind == BufferKind::optimizer_state))
      ++allocations;
  forecast[MemoryUse::alignment] = allocations * model::alignment;
  forecast[graphs] = recordings_take_memory(configuration) ? graph_nodes * cuda_node_bytes : 0;
  return forecast;
}

MemoryForecast forecast_memory(const Configuration& configuration, const StepPlan& plan) {
  const std::size_t kernels = plan.kernels.empty() ? 0 : captured_kernels(plan.runs, plan.kernels);
  return forecast_memory(configuration, plan.outline, plan.memory, lengths_captured(configuration) * kernels);
}

MemoryForecast forecast_memory(const Configuration& configuration, ForecastEvaluation evaluation) {
  return forecast_memory(configuration, first_shard(configuration.parallel), evaluation);
}

MemoryForecast forecast_memory(const Configuration& configuration, const ModelShard& shard,
                               ForecastEvaluation evaluation) {
  const KernelLabels labels =
      recordings_take_memory(configuration) ? KernelLabels::collect : KernelLabels::leave_out;
  MemoryForecast forecast = forecast_memory(configuration, plan_step(configuration, shard, labels));
  if (evaluation == ForecastEvaluation::include)
    forecast[MemoryUse::evaluation] = evaluation_bytes(configuration, shard);
  return forecast;
}

}  // namespace encore::model
