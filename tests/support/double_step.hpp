// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trainers.hpp"

#include <encore/backend/device.hpp>
#include <encore/graph/memory_plan.hpp>
#include <encore/graph/scalars.hpp>
#include <encore/kernels/rope.hpp>
#include <encore/model/step_program.hpp>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace encore::tests {

/// A model's step in float64 on Serial, all kernels being the library's own, for finite differences.
class DoubleStep {
 public:
  using Space = Kokkos::Serial;

  /// Of one rank; `tensor`: the group it shares the model with.
  explicit DoubleStep(const model::Configuration& configuration, const model::ModelShard& shard = {},
                      const std::shared_ptr<backend::Transport>& tensor = nullptr)
      : configuration_(configuration),
        layout_(configuration.model, true, shard),
        device_(3),
        step_(build(tensor)),
        plan_(graph::plan_memory(outline())),
        scalars_(device_.stream(), model::step_scalar_names()),
        bindings_(outline()) {
    for (std::size_t index = 0; index < outline().buffers().size(); ++index) {
      const auto& buffer = outline().buffers()[index];
      if (buffer.part || buffer.kind == graph::BufferKind::activation) continue;
      memory_.emplace_back(buffer.name, buffer.bytes());
      std::memset(memory_.back().data(), 0, buffer.bytes());
      bindings_.bind(static_cast<graph::BufferId>(index), memory_.back().data());
    }
    bindings_.bind(step_.scalars, scalars_.device_data());
    arena_ = backend::Allocation<Space>("arena", plan_.arena_bytes);
    std::memset(arena_.data(), 0xff, plan_.arena_bytes);  // NaN everywhere
    bindings_.bind_arena(plan_, arena_.data());
    bindings_.bind_parts(outline());
    scalars_.set("dropout", configuration.model.dropout);
    scalars_.set("attention_dropout", configuration.model.attention_dropout);
    scalars_.set("balance_loss", configuration.train.balance_loss);
    scalars_.set("router_z_loss", configuration.train.router_z_loss);
    scalars_.set("router_jitter", configuration.train.router_jitter);
    scalars_.upload(device_.stream());
    const auto& table = outline().buffer(step_.rope_cosine);
    if (table.elements() > 0) {
      const auto view = [&](graph::BufferId id) {
        return backend::Matrix<double, Space>(data(id), static_cast<std::size_t>(table.shape[0]),
                                              static_cast<std::size_t>(table.shape[1]));
      };
      kernels::rope_tables<Space, double>(device_.stream(), model::rope_frequencies(configuration.model),
                                          view(step_.rope_cosine), view(step_.rope_sine));
    }
    const Batch batch = random_batch(configuration, 0);
    std::memcpy(bindings_.address(step_.ids), batch.ids.data(), batch.ids.size() * 4);
    std::memcpy(bindings_.address(step_.labels), batch.labels.data(), batch.labels.size() * 4);
    std::mt19937 generator(11);
    std::normal_distribution<double> normal(0.0, 0.2);
    for (const auto& parameter : layout_.parameters())
      for (std::int64_t i = 0; i < parameter.elements(); ++i)
        data(step_.parameters)[parameter.offset + i] =
            normal(generator) + (parameter.initialization == model::Initialization::ones ? 1.0 : 0.0);
  }

  double loss() {
    run({graph::Phase::forward});
    double sum = *data(step_.loss);
    if (step_.balance_loss) sum += configuration_.train.balance_loss * *data(*step_.balance_loss);
    if (step_.z_loss) sum += configuration_.train.router_z_loss * *data(*step_.z_loss);
    return sum;
  }
  void backward() { run({graph::Phase::forward, graph::Phase::backward}); }
  double* parameters() { return data(step_.parameters); }
  const double* gradients() { return data(*step_.gradients); }
  const model::ParameterLayout& layout() const { return layout_; }

  using Tensors = std::map<std::string, std::vector<double>>;
  /// Puts this rank's part of parameters or gradients into whole tensors.
  void store(const double* values, Tensors& tensors) const {
    for_each_place([&](const std::string& tensor, std::int64_t size, std::int64_t whole, std::int64_t own) {
      auto& to = tensors[tensor];
      to.resize(static_cast<std::size_t>(size));
      to[static_cast<std::size_t>(whole)] = values[own];
    });
  }
  /// Takes this rank's part of parameters from whole tensors.
  void load(const Tensors& tensors) {
    for_each_place([&](const std::string& tensor, std::int64_t, std::int64_t whole, std::int64_t own) {
      parameters()[own] = tensors.at(tensor)[static_cast<std::size_t>(whole)];
    });
  }

 private:
  /// Calls `body(tensor, its elements, place in it, place in this rank's array)` for each element.
  template <class Body>
  void for_each_place(const Body& body) const {
    for (const model::ParameterBox& box : layout_.boxes()) {
      std::int64_t size = 1;
      for (const std::int64_t extent : box.shape) size *= extent;
      for (std::int64_t item = 0; item < box.elements(); ++item) {
        std::int64_t whole = box.tensor_offset, own = box.offset, rest = item;
        for (std::size_t i = box.extents.size(); i > 0; --i) {
          whole += rest % box.extents[i - 1] * box.tensor_strides[i - 1];
          own += rest % box.extents[i - 1] * box.strides[i - 1];
          rest /= box.extents[i - 1];
        }
        body(box.name, size, whole, own);
      }
    }
  }

  model::StepProgram<Space> build(const std::shared_ptr<backend::Transport>& tensor) {
    if (tensor) device_.join("tensor", tensor);
    model::StepShape shape = shape_of(configuration_);
    shape.sequence_parallel = configuration_.parallel.sequence && layout_.shard().layout.tensor() > 1;
    return model::build_step_program<Space, double, double>(device_, configuration_.model, layout_, shape);
  }
  static model::StepShape shape_of(const model::Configuration& configuration) {
    const auto& train = configuration.train;
    model::StepShape shape{train.microbatches, train.microbatch, train.seq, true, backend::DataType::float64};
    shape.experts = {train.balance_loss > 0, train.router_z_loss > 0, train.router_jitter > 0,
                     train.expert_capacity, train.expert_budget};
    return shape;
  }

  const graph::Outline& outline() const { return step_.program.outline(); }
  double* data(graph::BufferId id) { return reinterpret_cast<double*>(bindings_.address(id)); }
  void run(const std::vector<graph::Phase>& phases) {
    for (std::size_t index = 0; index < outline().segments().size(); ++index)
      if (std::find(phases.begin(), phases.end(), outline().segments()[index].phase) != phases.end())
        step_.program.run_segment(index, device_, bindings_);
  }

  model::Configuration configuration_;
  model::ParameterLayout layout_;
  backend::Device<Space> device_;
  model::StepProgram<Space> step_;
  graph::MemoryPlan plan_;
  graph::Scalars<Space> scalars_;
  graph::Bindings bindings_;
  std::vector<backend::Allocation<Space>> memory_;
  backend::Allocation<Space> arena_;
};

}  // namespace encore::tests
