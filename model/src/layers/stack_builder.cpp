// SPDX-License-Identifier: Apache-2.0
#include "stack_builder.hpp"

#include <encore/backend/error.hpp>

#include <array>
#include <utility>

namespace encore::model {

template <class Space, class T, class G>
StackBuilder<Space, T, G>::StackBuilder(backend::Device<Space>& device_, const ModelConfiguration& model_,
                                        const ParameterLayout& layout_, const StepShape& shape_)
    : device(device_), model(model_), layout(layout_), shape(shape_) {
  add_parameters();
  add_inputs();
}

template <class Space, class T, class G>
void StackBuilder<Space, T, G>::add_parameters() {
  const std::vector<std::int64_t> all{layout.elements()};
  step.parameters = add<T>("parameters", all, BufferKind::parameter);
  if (training()) {
    step.gradients = add<G>("gradients", all, BufferKind::gradient);
    const auto add_state = [&](const std::string& name) {
      return step.program.add_buffer({name, shape.optimizer_state, all, BufferKind::optimizer_state});
    };
    step.first_moment = add_state("first_moment");
    step.second_moment = add_state("second_moment");
    if (shape.master_weights) step.master = add<Accumulator<T>>("master", all, BufferKind::optimizer_state);
  }
  for (const Parameter& parameter : layout.parameters()) {
    const auto add_part = [&](BufferId whole, const std::string& suffix, backend::DataType type,
                              BufferKind kind) {
      const std::size_t offset = static_cast<std::size_t>(parameter.offset) * backend::size_of(type);
      step.program.add_buffer(
          {parameter.name + suffix, type, parameter.shape, kind, graph::BufferPart{whole, offset}});
    };
    add_part(step.parameters, "", backend::data_type_of<T>, BufferKind::parameter);
    if (training()) add_part(*step.gradients, ".gradient", backend::data_type_of<G>, BufferKind::gradient);
  }
}

template <class Space, class T, class G>
void StackBuilder<Space, T, G>::add_inputs() {
  const std::vector<std::int64_t> tokens_shape{shape.microbatches, shape.sequences, shape.tokens};
  step.ids = add<std::int32_t>("ids", tokens_shape, BufferKind::input);
  step.labels = add<std::int32_t>("labels", tokens_shape, BufferKind::input);
  const std::array<std::pair<const char*, graph::BufferId>, 2> inputs{
      {{"ids", step.ids}, {"labels", step.labels}}};
  for (std::int64_t microbatch = 0; microbatch < shape.microbatches; ++microbatch)
    for (const auto& [name, whole] : inputs) {
      const auto offset = static_cast<std::size_t>(microbatch * tokens()) * sizeof(std::int32_t);
      step.program.add_buffer({"microbatch." + std::to_string(microbatch) + "/" + name,
                               backend::DataType::int32,
                               {shape.sequences, shape.tokens},
                               BufferKind::input,
                               graph::BufferPart{whole, offset}});
    }
  const auto& names = step_scalar_names();
  step.scalars = add<double>("scalars", {static_cast<std::int64_t>(names.size())}, BufferKind::scalar);
  for (std::size_t index = 0; index < names.size(); ++index)
    step.program.add_buffer({"scalar/" + names[index],
                             backend::DataType::float64,
                             {1},
                             BufferKind::scalar,
                             graph::BufferPart{step.scalars, index * sizeof(double)}});
  step.loss = add<double>("loss", {1}, BufferKind::metric);
  step.label_count = add<double>("label_count", {1}, BufferKind::metric);
  if (training()) step.gradient_norm = add<double>("gradient_norm", {1}, BufferKind::metric);

  const bool rotary = model.position != Position::learned;
  const std::vector<std::int64_t> table{rotary ? shape.tokens : 0, rotary ? model.head_dim / 2 : 0};
  step.rope_cosine = add<Accumulator<T>>("rope/cosine", table, BufferKind::state);
  step.rope_sine = add<Accumulator<T>>("rope/sine", table, BufferKind::state);
}

template <class Space, class T, class G>
ParameterBuffers StackBuilder<Space, T, G>::parameter(const std::string& name) {
  const auto& outline = step.program.outline();
  ParameterBuffers buffers{outline.find_buffer(layout.parameter(name).name).value(), std::nullopt};
  if (training()) buffers.gradient = outline.find_buffer(name + ".gradient").value();
  return buffers;
}

template <class Space, class T, class G>
NormBuffers StackBuilder<Space, T, G>::norm(const std::string& name) {
  NormBuffers buffers{parameter(name + ".weight"), std::nullopt};
  if (model.normalization == Normalization::layer_norm) buffers.bias = parameter(name + ".bias");
  return buffers;
}

template <class Space, class T, class G>
LinearBuffers StackBuilder<Space, T, G>::linear(const std::string& name) {
  LinearBuffers buffers{parameter(name + ".weight"), std::nullopt, model.family == "gpt2"};
  if (layout.contains(name + ".bias")) buffers.bias = parameter(name + ".bias");
  return buffers;
}

template <class Space, class T, class G>
NormStatistics StackBuilder<Space, T, G>::statistics(const std::string& name) {
  NormStatistics statistics{std::nullopt, add<Accumulator<T>>(name + "/inverse", {tokens()})};
  if (model.normalization == Normalization::layer_norm)
    statistics.mean = add<Accumulator<T>>(name + "/mean", {tokens()});
  return statistics;
}

template <class Space, class T, class G>
BufferId StackBuilder<Space, T, G>::scalar(const std::string& name) const {
  return step.program.outline().find_buffer("scalar/" + name).value();
}

template <class Space, class T, class G>
std::uint32_t StackBuilder<Space, T, G>::random_segment(std::int64_t microbatch, std::int64_t layer,
                                                        RandomPlace place) const {
  const std::int64_t residual = drops() ? 1 : 0, attention = drops_attention() ? 1 : 0;
  const std::int64_t of_layer = attention + 2 * residual;
  const std::int64_t first = microbatch * (residual + model.layers * of_layer);
  const std::int64_t first_of_layer = first + residual + layer * of_layer;
  switch (place) {
    case RandomPlace::embedding: return static_cast<std::uint32_t>(first);
    case RandomPlace::attention: return static_cast<std::uint32_t>(first_of_layer);
    case RandomPlace::attention_result: return static_cast<std::uint32_t>(first_of_layer + attention);
    case RandomPlace::mlp_result: return static_cast<std::uint32_t>(first_of_layer + attention + residual);
  }
  throw InternalError("no such place of random numbers");
}

#define ENCORE_INSTANTIATE(SPACE, T, G) template class StackBuilder<SPACE, T, G>;
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
