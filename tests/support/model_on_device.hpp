// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/graph/executor.hpp>
#include <encore/graph/scalars.hpp>
#include <encore/kernels/initialization.hpp>
#include <encore/kernels/rope.hpp>
#include <encore/model/step_program.hpp>

#include "trainers.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace encore::tests {

/// A float model's training step below the trainer: its program, plan and memory lie open, so that a test can move,
/// poison and compare buffers. Weights are random, the optimizer state is zero, dropout 0.1 where the model has it.
template <class Space>
class ModelOnDevice {
 public:
  explicit ModelOnDevice(const model::Configuration& configuration)
      : layout(configuration.model, false),
        device(3),
        step(model::build_step_program<Space, float, float>(
            device, configuration.model, layout,
            {configuration.train.microbatches, configuration.train.microbatch, configuration.train.seq,
             true})),
        plan(graph::plan_memory(step.program.outline())),
        arena("arena", plan.arena_bytes),
        scalars(device.stream(), model::step_scalar_names()),
        configuration_(configuration) {
    allocate();
    fill();
  }

  const graph::Outline& outline() const { return step.program.outline(); }

  /// For this program, or one with the same buffers.
  graph::Bindings bindings(const graph::Outline& of) const {
    graph::Bindings result(of);
    for (std::size_t i = 0; i < memory_.size(); ++i)
      if (memory_[i].data() != nullptr) result.bind(static_cast<graph::BufferId>(i), memory_[i].data());
    result.bind(step.scalars, scalars.device_data());
    result.bind_arena(plan, arena.data());
    result.bind_parts(of);
    return result;
  }
  graph::Bindings bindings() const { return bindings(outline()); }

  void set_step(std::int64_t number, double learning_rate) {
    scalars.set("step", static_cast<double>(number));
    scalars.set("learning_rate", learning_rate);
    scalars.upload(device.stream());
    const Batch batch = random_batch(configuration_, number);
    copy_in(memory(step.ids), batch.ids);
    copy_in(memory(step.labels), batch.labels);
  }

  backend::Allocation<Space>& memory(graph::BufferId id) { return memory_[static_cast<std::size_t>(id)]; }
  std::vector<std::byte> read(graph::BufferId id) {
    return read_bytes(memory(id).data(), memory(id).bytes());
  }
  std::vector<std::byte> read_bytes(const std::byte* data, std::size_t bytes) {
    std::vector<std::byte> result(bytes);
    device.stream().copy_to_host(result.data(), data, bytes, "test");
    device.stream().synchronize("test");
    return result;
  }
  void write(graph::BufferId id, const std::vector<std::byte>& bytes) { copy_in(memory(id), bytes); }

  /// Weights, gradients, moments and metrics, by name.
  std::vector<std::pair<std::string, std::vector<std::byte>>> state() {
    std::vector<std::pair<std::string, std::vector<std::byte>>> result;
    const std::vector<graph::BufferId> ids{step.parameters,     *step.gradients, *step.first_moment,
                                           *step.second_moment, step.loss,       *step.gradient_norm};
    for (const graph::BufferId id : ids) result.emplace_back(outline().buffer(id).name, read(id));
    const std::vector<std::optional<graph::BufferId>> of_experts{step.balance_loss, step.z_loss,
                                                                 step.tokens_of_expert, step.expert_bias};
    for (const auto& id : of_experts)
      if (id) result.emplace_back(outline().buffer(*id).name, read(*id));
    return result;
  }

  model::ParameterLayout layout;
  backend::Device<Space> device;
  model::StepProgram<Space> step;
  graph::MemoryPlan plan;
  backend::Allocation<Space> arena;
  graph::Scalars<Space> scalars;

 private:
  template <class T>
  void copy_in(backend::Allocation<Space>& to, const std::vector<T>& values) {
    device.stream().copy_to_device(to.data(), values.data(), values.size() * sizeof(T), "test");
    device.stream().synchronize("test");
  }

  void allocate() {
    for (const graph::Buffer& buffer : outline().buffers()) {
      memory_.emplace_back();
      if (buffer.part || buffer.kind == graph::BufferKind::activation ||
          buffer.kind == graph::BufferKind::scalar)
        continue;
      memory_.back() = backend::Allocation<Space>(buffer.name, buffer.bytes());
      device.stream().clear(memory_.back().data(), buffer.bytes(), "test");
    }
  }

  void fill() {
    const backend::Vector<float, Space> weights(reinterpret_cast<float*>(memory(step.parameters).data()),
                                                static_cast<std::size_t>(layout.elements()));
    kernels::fill_normal<Space, float>(device.stream(), weights, 0.0, 0.05, 7, 0);
    const graph::Buffer& table = outline().buffer(step.rope_cosine);
    if (table.elements() > 0) {
      const auto view = [&](graph::BufferId id) {
        return backend::Matrix<float, Space>(reinterpret_cast<float*>(memory(id).data()),
                                             static_cast<std::size_t>(table.shape[0]),
                                             static_cast<std::size_t>(table.shape[1]));
      };
      kernels::rope_tables<Space, float>(device.stream(), model::rope_frequencies(configuration_.model),
                                         view(step.rope_cosine), view(step.rope_sine));
    }
    const auto& train = configuration_.train;
    for (const auto& [name, value] : std::vector<std::pair<const char*, double>>{
             {"weight_decay", train.weight_decay},
             {"beta1", train.beta1},
             {"beta2", train.beta2},
             {"epsilon", train.epsilon},
             {"clip", train.clip},
             {"gradient_scale", 1.0},
             {"dropout", configuration_.model.dropout},
             {"attention_dropout", configuration_.model.attention_dropout}})
      scalars.set(name, value);
    device.stream().synchronize("test");
  }

  model::Configuration configuration_;
  std::vector<backend::Allocation<Space>>
      memory_;  ///< by buffer id; empty for parts, scalars and activations
};

}  // namespace encore::tests
