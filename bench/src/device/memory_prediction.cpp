// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/step_program.hpp>

#include <string>

#include "description.hpp"

namespace encore::command {

namespace {

using model::Configuration;
using model::Precision;

template <class Space, class T, class G>
graph::MemoryPlan plan_of(const Configuration& configuration) {
  const auto& train = configuration.train;
  backend::Device<Space> device(static_cast<std::uint64_t>(configuration.seed));
  const model::ParameterLayout layout(configuration.model, train.decay_all);
  const model::StepShape shape{.microbatches = train.microbatches,
                               .sequences = train.microbatch,
                               .tokens = train.seq,
                               .optimizer_state = train.optimizer_state == Precision::bf16
                                                      ? backend::DataType::bfloat16
                                                      : backend::DataType::float32,
                               .master_weights = train.master_weights,
                               .pipeline = configuration.parallel.pipeline,
                               .virtual_stages = configuration.parallel.virtual_stages,
                               .recompute = train.recompute,
                               .delay_weight_gradients = train.delay_wgrad};
  return graph::plan_memory(
      model::build_step_program<Space, T, G>(device, configuration.model, layout, shape).program.outline());
}

template <class Space>
graph::MemoryPlan plan_on(const Configuration& configuration) {
  using backend::bfloat16;
  if (configuration.train.precision == Precision::fp32) return plan_of<Space, float, float>(configuration);
  if (configuration.train.gradient_type == Precision::bf16)
    return plan_of<Space, bfloat16, bfloat16>(configuration);
  return plan_of<Space, bfloat16, float>(configuration);
}

}  // namespace

graph::MemoryPlan predict_memory(const Configuration& configuration) {
  switch (configuration.backend) {
    case model::BackendKind::serial: ENCORE_IF_SERIAL(return plan_on<Kokkos::Serial>(configuration);) break;
    case model::BackendKind::openmp: ENCORE_IF_OPENMP(return plan_on<Kokkos::OpenMP>(configuration);) break;
    case model::BackendKind::cuda: ENCORE_IF_CUDA(return plan_on<Kokkos::Cuda>(configuration);) break;
  }
  throw DeviceError("this build has no " + std::string(name_of(configuration.backend)) + " backend");
}

}  // namespace encore::command
