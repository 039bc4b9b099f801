// SPDX-License-Identifier: Apache-2.0
#include "stack_builder.hpp"
#include "update_parts.hpp"

#include <encore/backend/error.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace encore::model {

template <class Space, class T, class G>
StackBuilder<Space, T, G>::StackBuilder(backend::Device<Space>& device_, const ModelConfiguration& model_,
                                        const ParameterLayout& layout_, const StepShape& shape_)
    : device(device_),
      model(model_),
      layout(layout_),
      shape(shape_),
      local(local_model(model_, layout_.shard())),
      blocks_(blocks_of_layers(model_)) {
  draws_before_.push_back(0);
  for (const std::vector<Block>& layer : blocks_) {
    draws_before_.push_back(draws_before_.back());
    for (const Block block : layer) draws_before_.back() += draws_of(block);
  }
  add_parameters();
  add_inputs();
  if (has_block(model, Block::experts)) add_expert_buffers();
}

template <class Space, class T, class G>
void StackBuilder<Space, T, G>::add_parameters() {
  const std::vector<std::int64_t> all{layout.elements()};
  step.parameters = add<T>("parameters", all, BufferKind::parameter);
  if (training()) {
    step.gradients = add<G>("gradients", all, BufferKind::gradient);
    const std::vector<std::int64_t> own{optimizer_elements(layout, model.layers)};
    const auto add_state = [&](const std::string& name) {
      return step.program.add_buffer({name, shape.optimizer_state, own, BufferKind::optimizer_state});
    };
    step.first_moment = add_state("first_moment");
    step.second_moment = add_state("second_moment");
    if (shape.master_weights) step.master = add<Accumulator<T>>("master", own, BufferKind::optimizer_state);
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

  const bool rotary = has_rotation(model);
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
  // Of the tokens of this rank.
  if (training() && shape.sequence_parallel) {
    add_terms(buffers.weight);
    if (buffers.bias) add_terms(*buffers.bias);
  }
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
  NormStatistics statistics{std::nullopt, add<Accumulator<T>>(name + "/inverse", {stream_tokens()})};
  if (model.normalization == Normalization::layer_norm)
    statistics.mean = add<Accumulator<T>>(name + "/mean", {stream_tokens()});
  return statistics;
}

template <class Space, class T, class G>
BufferId StackBuilder<Space, T, G>::scalar(const std::string& name) const {
  return step.program.outline().find_buffer("scalar/" + name).value();
}

template <class Space, class T, class G>
void StackBuilder<Space, T, G>::add_expert_buffers() {
  const std::int64_t layers = expert_layers_before(model.layers), experts = model.experts;
  const auto add_rows = [&](BufferId whole, const std::string& name, backend::DataType type,
                            std::int64_t columns, std::int64_t row, BufferKind kind) {
    const std::size_t offset = static_cast<std::size_t>(row * columns) * backend::size_of(type);
    step.program.add_buffer({name, type, {columns}, kind, graph::BufferPart{whole, offset}});
  };
  if (model.expert_bias)
    step.expert_bias = add<Accumulator<T>>("expert_bias", {layers, experts}, BufferKind::optimizer_state);
  if (training()) {
    step.balance_loss = add<double>("balance_loss", {1}, BufferKind::metric);
    step.z_loss = add<double>("z_loss", {1}, BufferKind::metric);
    step.tokens_of_expert = add<std::int32_t>("tokens_of_expert", {layers, experts}, BufferKind::metric);
    step.rows_needed = add<std::int32_t>("rows_needed", {shape.microbatches, layers}, BufferKind::metric);
    step.over_budget = add<double>("over_budget", {2}, BufferKind::metric);
  }
  for (std::int64_t layer = 0, row = 0; layer < model.layers; ++layer) {
    if (std::ranges::find(blocks_[static_cast<std::size_t>(layer)], Block::experts) ==
        blocks_[static_cast<std::size_t>(layer)].end())
      continue;
    const std::string name = "layer." + std::to_string(layer) + "/moe";
    if (step.expert_bias)
      add_rows(*step.expert_bias, name + "/selection_bias", backend::data_type_of<Accumulator<T>>, experts,
               row, BufferKind::optimizer_state);
    if (training()) {
      add_rows(*step.tokens_of_expert, name + "/tokens_of_expert_in_step", backend::DataType::int32, experts,
               row, BufferKind::metric);
      for (std::int64_t microbatch = 0; microbatch < shape.microbatches; ++microbatch)
        add_rows(*step.rows_needed, prefix(microbatch) + name + "/rows_needed", backend::DataType::int32, 1,
                 microbatch * layers + row, BufferKind::metric);
    }
    ++row;
  }
}

template <class Space, class T, class G>
std::int64_t StackBuilder<Space, T, G>::expert_layers_before(std::int64_t layer) const {
  return std::count_if(blocks_.begin(), blocks_.begin() + layer, [](const std::vector<Block>& blocks) {
    return std::ranges::find(blocks, Block::experts) != blocks.end();
  });
}

template <class Space, class T, class G>
std::int64_t StackBuilder<Space, T, G>::draws_of(Block block) const {
  const std::int64_t residual = drops() ? 1 : 0;
  switch (block) {
    case Block::attention:
    case Block::windowed_attention: return residual + (drops_attention() ? 1 : 0);
    case Block::experts: return residual + (jitters() ? 1 : 0);
    case Block::mamba:
    case Block::mlp: return residual;
  }
  return 0;
}

template <class Space, class T, class G>
std::uint32_t StackBuilder<Space, T, G>::random_segment(std::int64_t microbatch, std::int64_t layer,
                                                        RandomPlace place) const {
  const std::int64_t residual = drops() ? 1 : 0;
  const std::int64_t among_all_ranks = shard().place.data * shape.microbatches + microbatch;
  const std::int64_t first = among_all_ranks * (residual + draws_before_.back());
  const auto block_of = [](RandomPlace of) -> std::vector<Block> {
    switch (of) {
      case RandomPlace::embedding: return {};
      case RandomPlace::attention:
      case RandomPlace::attention_result: return {Block::attention, Block::windowed_attention};
      case RandomPlace::mlp_result: return {Block::mlp};
      case RandomPlace::mamba_result: return {Block::mamba};
      case RandomPlace::router_jitter:
      case RandomPlace::experts_result: return {Block::experts};
    }
    return {};
  };
  if (place == RandomPlace::embedding) return static_cast<std::uint32_t>(first);
  const auto index = static_cast<std::size_t>(layer);
  const std::vector<Block> wanted = block_of(place);
  std::int64_t number = first + residual + draws_before_[index];
  for (const Block block : blocks_[index]) {
    if (std::ranges::find(wanted, block) != wanted.end()) {
      // A block draws for what is inside it first, and for its result last.
      const bool inside = place == RandomPlace::attention || place == RandomPlace::router_jitter;
      return static_cast<std::uint32_t>(inside ? number : number + draws_of(block) - residual);
    }
    number += draws_of(block);
  }
  throw InternalError("layer " + std::to_string(layer) + " has no block that draws such random numbers");
}

#define ENCORE_INSTANTIATE(SPACE, T, G) template class StackBuilder<SPACE, T, G>;
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
