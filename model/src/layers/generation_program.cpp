// SPDX-License-Identifier: Apache-2.0
#include "generation_program.hpp"

#include <encore/backend/error.hpp>
#include <encore/kernels/decode.hpp>
#include <encore/kernels/decode_attention.hpp>
#include <encore/kernels/decode_mamba.hpp>
#include <encore/kernels/gated_normalization.hpp>
#include <encore/kernels/sampling.hpp>

#include "attention_geometry.hpp"
#include "mamba_geometry.hpp"
#include "operations.hpp"

namespace encore::model {

namespace {

/// Appends the segments of one step.
template <class Space, class T>
class GenerationBuilder {
 public:
  using A = Accumulator<T>;
  using Ops = Operations<Space, T>;

  GenerationBuilder(backend::Device<Space>& device, const ModelConfiguration& model,
                    const ParameterLayout& layout, const GenerationShape& shape)
      : builder_(device, model, layout, {1, shape.sequences, shape.tokens, false}),
        model_(model),
        shape_(shape),
        blocks_(blocks_of_layers(model)) {
    add_buffers();
  }

  GenerationProgram<Space> build() {
    BufferId stream = append_embedding();
    for (std::int64_t layer = 0; layer < model_.layers; ++layer)
      for (const Block block : blocks_[static_cast<std::size_t>(layer)])
        stream = append_block(layer, block, stream);
    if (shape_.samples) append_head(stream);
    append_advance();
    result_.program = std::move(builder_.step.program);
    return std::move(result_);
  }

 private:
  std::int64_t rows() const { return builder_.tokens(); }

  std::int64_t count_of(const std::vector<Block>& kinds) const {
    std::int64_t count = 0;
    for (const auto& layer : blocks_)
      for (const Block block : layer) count += std::ranges::find(kinds, block) != kinds.end() ? 1 : 0;
    return count;
  }

  void add_buffers() {
    GenerationProgram<Space>& r = result_;
    const StepProgram<Space>& step = builder_.step;
    r.parameters = step.parameters;
    r.expert_bias = step.expert_bias;
    r.unused = {step.ids, step.labels, step.scalars};
    const bool rotary = has_rotation(model_);
    const std::vector<std::int64_t> table{rotary ? shape_.capacity : 0, rotary ? model_.head_dim / 2 : 0};
    r.rope_cosine = builder_.template add<A>("generation/cosine", table, BufferKind::state);
    r.rope_sine = builder_.template add<A>("generation/sine", table, BufferKind::state);
    r.tokens = builder_.template add<std::int32_t>("generation/tokens", {shape_.sequences, shape_.capacity},
                                                   BufferKind::state);
    r.first = builder_.template add<std::int32_t>("generation/first", {shape_.sequences}, BufferKind::state);
    r.count = builder_.template add<std::int32_t>("generation/count", {shape_.sequences}, BufferKind::input);
    r.settings = builder_.template add<std::uint8_t>(
        "generation/settings", {static_cast<std::int64_t>(sizeof(kernels::SamplingSettings))},
        BufferKind::scalar);
    const std::int64_t attention = count_of({Block::attention, Block::windowed_attention});
    const std::int64_t mamba = count_of({Block::mamba});
    const std::vector<std::int64_t> cache{attention, shape_.sequences, shape_.capacity, model_.kv_heads,
                                          model_.head_dim};
    r.keys = builder_.template add<T>("generation/keys", cache, BufferKind::state);
    r.values = builder_.template add<T>("generation/values", cache, BufferKind::state);
    const MambaGeometry geometry = mamba_geometry_of(builder_);
    r.windows = builder_.template add<T>(
        "generation/windows", {mamba, shape_.sequences, model_.mamba_convolution - 1, geometry.mixed()},
        BufferKind::state);
    r.states = builder_.template add<A>(
        "generation/states",
        {mamba, shape_.sequences, model_.mamba_heads, model_.mamba_head_dim, model_.mamba_state},
        BufferKind::state);
  }

  /// The next block's part of an array of all blocks of its kind.
  BufferId next_part(BufferId whole, const std::string& name, std::int64_t index) {
    const Buffer buffer = builder_.step.program.outline().buffer(whole);
    const std::vector<std::int64_t> extents(buffer.shape.begin() + 1, buffer.shape.end());
    const std::size_t bytes = buffer.bytes() / static_cast<std::size_t>(buffer.shape[0]);
    return builder_.step.program.add_buffer(
        {name, buffer.type, extents, buffer.kind,
         graph::BufferPart{whole, static_cast<std::size_t>(index) * bytes}});
  }

  static kernels::DecodeRows<Space> rows_of(Execution<Space>& x, BufferId first, BufferId count,
                                            std::int64_t tokens) {
    return {x.template vector<const std::int32_t>(first), x.template vector<const std::int32_t>(count),
            tokens};
  }

  BufferId append_embedding() {
    const ParameterBuffers table = builder_.parameter("embedding/tokens");
    std::optional<ParameterBuffers> positions;
    if (model_.position == Position::learned) positions = builder_.parameter("embedding/positions");
    const BufferId result = builder_.template add<T>("embedding/result", {rows(), model_.hidden});
    std::optional<BufferId> live;
    if (has_block(model_, Block::experts))
      live = builder_.template add<std::int32_t>("embedding/live", {rows()});
    const BufferId tokens = result_.tokens, first = result_.first, count = result_.count;
    builder_.step.program.add_segment(
        {"embedding/forward", Module::embedding, Phase::forward, -1, -1,
         buffers_of(tokens, first, count, table.value, value_of(positions)), buffers_of(result, live)},
        [=, step_tokens = shape_.tokens](Execution<Space>& x) {
          kernels::decode_embedding<Space, T>(
              x.stream(), rows_of(x, first, count, step_tokens),
              x.template matrix<const std::int32_t>(tokens), x.template matrix<const T>(table.value),
              positions ? x.template matrix<const T>(positions->value) : backend::Matrix<const T, Space>(),
              x.template matrix<T>(result),
              live ? x.template vector<std::int32_t>(*live) : backend::Vector<std::int32_t, Space>());
        });
    return result;
  }

  BufferId append_block(std::int64_t layer, Block block, BufferId input) {
    switch (block) {
      case Block::attention: return append_attention(layer, input, 0);
      case Block::windowed_attention: return append_attention(layer, input, model_.sliding_window);
      case Block::mlp: return append_mlp_forward(builder_, 0, layer, input).result;
      case Block::experts: return append_experts_forward(builder_, 0, layer, input).result;
      case Block::mamba: return append_mamba(layer, input);
    }
    throw InternalError("no such block");
  }

  BufferId append_attention(std::int64_t layer, BufferId input, std::int64_t window) {
    const std::string name = "layer." + std::to_string(layer) + "/attn";
    const AttentionGeometry geometry = geometry_of(builder_, window);
    const kernels::DecodeAttentionShape shape{model_.heads,
                                              model_.kv_heads,
                                              model_.head_dim,
                                              shape_.capacity,
                                              1.0 / std::sqrt(static_cast<double>(model_.head_dim)),
                                              window};
    const NormBuffers norm = builder_.norm(name + "/norm");
    const LinearBuffers qkv = builder_.linear(name + "/qkv"), output = builder_.linear(name + "/output");
    std::optional<ParameterBuffers> query_norm, key_norm, sinks;
    if (model_.query_key_norm) {
      query_norm = builder_.parameter(name + "/query_norm.weight");
      key_norm = builder_.parameter(name + "/key_norm.weight");
    }
    if (model_.attention_sinks) sinks = builder_.parameter(name + "/sinks");
    const BufferId keys = next_part(result_.keys, name + "/keys", attention_blocks_);
    const BufferId values = next_part(result_.values, name + "/values", attention_blocks_++);
    const std::int64_t width = model_.heads * model_.head_dim;
    const BufferId result = builder_.template add<T>(name + "/result", {rows(), model_.hidden});
    const BufferId normalized = builder_.template add<T>(name + "/normalized", {rows(), model_.hidden});
    const NormStatistics statistics = builder_.statistics(name + "/norm");
    const BufferId projected = builder_.template add<T>(name + "/qkv", {rows(), shape.row()});
    std::optional<BufferId> heads_normalized;
    if (model_.query_key_norm)
      heads_normalized =
          builder_.template add<T>(name + "/heads_normalized", {rows(), geometry.rotated_row()});
    const BufferId queries = builder_.template add<T>(name + "/queries", {rows(), width});
    const BufferId context = builder_.template add<T>(name + "/context", {rows(), width});
    const BufferId workspace = builder_.template add<A>(
        name + "/workspace", {kernels::decode_attention_workspace<Space>(shape, rows())});
    const BufferId first = result_.first, count = result_.count;
    const BufferId cosine = result_.rope_cosine, sine = result_.rope_sine;
    Segment segment = segment_of_layer(name + "/forward", Module::attn, Phase::forward, layer, -1);
    segment.reads = buffers_of(input, norm.weight.value, value_of(norm.bias), qkv.weight.value,
                               value_of(qkv.bias), value_of(query_norm), value_of(key_norm), value_of(sinks),
                               output.weight.value, value_of(output.bias), first, count, cosine, sine);
    segment.writes = buffers_of(result, normalized, statistics, projected, heads_normalized, queries, keys,
                                values, workspace, context);
    builder_.step.program.add_segment(
        std::move(segment), [=, step_tokens = shape_.tokens, all_rows = rows()](Execution<Space>& x) {
          using Table = backend::Matrix<const A, Space>;
          const auto rows = rows_of(x, first, count, step_tokens);
          Ops::norm_forward(x, norm, statistics, input, normalized, geometry.epsilon);
          Ops::linear_forward(x, "encore::attn::qkv", qkv, normalized, projected);
          if (heads_normalized)
            kernels::head_norm_forward<Space, T>(
                x.stream(), {all_rows, 1, shape.heads, shape.kv_heads, shape.head_dim, shape.row()},
                x.template pointer<const T>(projected), x.template vector<const T>(query_norm->value),
                x.template vector<const T>(key_norm->value), geometry.style, Table(), Table(),
                x.template matrix<T>(*heads_normalized), geometry.epsilon);
          const auto cached = [&](BufferId id) {
            return backend::Matrix<T, Space>(x.template pointer<T>(id),
                                             static_cast<std::size_t>(rows.sequences() * shape.capacity),
                                             static_cast<std::size_t>(shape.cached()));
          };
          const auto key_cache = cached(keys), value_cache = cached(values);
          kernels::append_to_cache<Space, T>(x.stream(), rows, shape, x.template matrix<const T>(projected),
                                             heads_normalized ? x.template matrix<const T>(*heads_normalized)
                                                              : backend::Matrix<const T, Space>(),
                                             geometry.style,
                                             geometry.rotary ? x.template matrix<const A>(cosine) : Table(),
                                             geometry.rotary ? x.template matrix<const A>(sine) : Table(),
                                             x.template matrix<T>(queries), key_cache, value_cache);
          kernels::decode_attention<Space, T>(
              x.stream(), rows, shape, x.template matrix<const T>(queries), key_cache, value_cache,
              sinks ? x.template vector<const T>(sinks->value) : backend::Vector<const T, Space>(),
              x.template vector<A>(workspace), x.template matrix<T>(context));
          Ops::linear_forward(x, "encore::attn::output", output, context, result, input);
        });
    return result;
  }

  BufferId append_mamba(std::int64_t layer, BufferId input) {
    const std::string name = "layer." + std::to_string(layer) + "/mamba";
    const MambaGeometry geometry = mamba_geometry_of(builder_);
    const NormBuffers norm = builder_.norm(name + "/norm");
    const LinearBuffers in = builder_.linear(name + "/in"), out = builder_.linear(name + "/out");
    const ParameterBuffers weight = builder_.parameter(name + "/convolution.weight");
    std::optional<ParameterBuffers> bias;
    if (model_.mamba_convolution_bias) bias = builder_.parameter(name + "/convolution.bias");
    const ParameterBuffers step_bias = builder_.parameter(name + "/step_bias");
    const ParameterBuffers decay_log = builder_.parameter(name + "/decay_log");
    const ParameterBuffers skip = builder_.parameter(name + "/skip");
    const ParameterBuffers gate_norm = builder_.parameter(name + "/gate_norm.weight");
    const BufferId window = next_part(result_.windows, name + "/window", mamba_blocks_);
    const BufferId state = next_part(result_.states, name + "/state", mamba_blocks_++);
    const auto add = [&](const char* suffix, std::int64_t columns) {
      return builder_.template add<T>(name + suffix, {rows(), columns});
    };
    const BufferId result = add("/result", model_.hidden), normalized = add("/normalized", model_.hidden);
    const NormStatistics statistics = builder_.statistics(name + "/norm");
    const BufferId projected = add("/projected", geometry.projected()),
                   mixed = add("/mixed", geometry.mixed());
    const BufferId scanned = add("/scanned", geometry.inner()), gated = add("/gated", geometry.inner());
    const BufferId gate_inverse =
        builder_.template add<A>(name + "/gate_norm/inverse", {rows(), geometry.norm_groups});
    const BufferId first = result_.first, count = result_.count;
    Segment segment = segment_of_layer(name + "/forward", Module::mamba, Phase::forward, layer, -1);
    segment.reads =
        buffers_of(input, norm.weight.value, value_of(norm.bias), in.weight.value, value_of(in.bias),
                   weight.value, value_of(bias), step_bias.value, decay_log.value, skip.value,
                   gate_norm.value, out.weight.value, value_of(out.bias), first, count);
    segment.writes = buffers_of(result, normalized, statistics, projected, mixed, window, state, scanned,
                                gated, gate_inverse);
    builder_.step.program.add_segment(std::move(segment), [=,
                                                           step_tokens = shape_.tokens](Execution<Space>& x) {
      using kernels::columns_of;
      const auto rows = rows_of(x, first, count, step_tokens);
      Ops::norm_forward(x, norm, statistics, input, normalized, geometry.epsilon);
      Ops::linear_forward(x, "encore::mamba::in", in, normalized, projected);
      const auto of_projected = x.template matrix<const T>(projected),
                 of_mixed = x.template matrix<const T>(mixed);
      const auto weights = [&](const ParameterBuffers& of) { return x.template vector<const T>(of.value); };
      kernels::causal_convolution_step<Space, T>(
          x.stream(), rows, geometry.template mixed_of<Space>(of_projected),
          x.template matrix<const T>(weight.value), bias ? weights(*bias) : backend::Vector<const T, Space>(),
          x.template vector<T>(window), columns_of<T, Space>(x.template matrix<T>(mixed)));
      const std::int64_t inner = geometry.inner(), width = geometry.groups_state();
      const kernels::StateSpaceInputs<Space, T> inputs{
          columns_of<const T, Space>(of_mixed, 0, inner),
          columns_of<const T, Space>(of_mixed, inner, width),
          columns_of<const T, Space>(of_mixed, inner + width, width),
          geometry.template step_of<Space>(of_projected),
          weights(step_bias),
          weights(decay_log),
          weights(skip)};
      kernels::state_space_step<Space, T>(x.stream(), rows, geometry.scan, inputs,
                                          x.template vector<A>(state),
                                          columns_of<T, Space>(x.template matrix<T>(scanned)));
      kernels::gated_rms_norm_forward<Space, T>(
          x.stream(), columns_of<const T, Space>(x.template matrix<const T>(scanned)),
          geometry.template gate_of<Space>(of_projected), weights(gate_norm),
          columns_of<T, Space>(x.template matrix<T>(gated)), x.template matrix<A>(gate_inverse),
          geometry.epsilon);
      Ops::linear_forward(x, "encore::mamba::out", out, gated, result, input);
    });
    return result;
  }

  /// Logits in float whatever T is: equal ones would be frequent in bfloat16.
  void append_head(BufferId input) {
    const NormBuffers norm = builder_.norm("head/norm");
    const ParameterBuffers weight =
        builder_.parameter(model_.tie_embeddings ? "embedding/tokens" : "head/logits.weight");
    const BufferId normalized = builder_.template add<T>("head/normalized", {rows(), model_.hidden});
    const NormStatistics statistics = builder_.statistics("head/norm");
    const BufferId logits =
        builder_.template add<float>("head/logits", {rows(), model_.vocab}, BufferKind::metric);
    result_.logits = logits;
    builder_.step.program.add_segment(
        {"head/forward", Module::head, Phase::forward, -1, -1,
         buffers_of(input, norm.weight.value, value_of(norm.bias), weight.value),
         buffers_of(normalized, statistics, logits)},
        [=, epsilon = model_.norm_epsilon](Execution<Space>& x) {
          using enum backend::Transpose;
          Ops::norm_forward(x, norm, statistics, input, normalized, epsilon);
          x.device().blas().template multiply<T, float>(
              x.stream(), "encore::head::logits", no,
              backend::operand<const T, Space>(x.template matrix<const T>(normalized)), yes,
              backend::operand<const T, Space>(x.template matrix<const T>(weight.value)),
              backend::operand<float, Space>(x.template matrix<float>(logits)));
        });
    const BufferId workspace = builder_.template add<std::uint64_t>(
        "head/sampling_workspace", {kernels::sampling_workspace(shape_.sequences, model_.vocab)});
    const BufferId tokens = result_.tokens, first = result_.first, count = result_.count,
                   settings = result_.settings;
    builder_.step.program.add_segment(
        {"head/sample", Module::head, Phase::forward, -1, -1, buffers_of(logits, first, count, settings),
         buffers_of(tokens, workspace)},
        [=](Execution<Space>& x) {
          kernels::sample_tokens<Space>(
              x.stream(), rows_of(x, first, count, 1), x.template matrix<const float>(logits),
              reinterpret_cast<const kernels::SamplingSettings*>(
                  x.template pointer<const std::uint8_t>(settings)),
              x.template matrix<std::int32_t>(tokens), x.template vector<std::uint64_t>(workspace));
        });
  }

  void append_advance() {
    const BufferId first = result_.first, count = result_.count;
    builder_.step.program.add_segment(
        {"advance", Module::random, Phase::forward, -1, -1, buffers_of(count), buffers_of(first)},
        [=](Execution<Space>& x) {
          kernels::advance_positions<Space>(x.stream(), x.template vector<const std::int32_t>(count),
                                            x.template vector<std::int32_t>(first));
        });
  }

  StackBuilder<Space, T, T> builder_;
  const ModelConfiguration& model_;
  GenerationShape shape_;
  std::vector<std::vector<Block>> blocks_;
  GenerationProgram<Space> result_{};
  std::int64_t attention_blocks_ = 0, mamba_blocks_ = 0;
};

}  // namespace

template <class Space, class T>
GenerationProgram<Space> build_generation_program(backend::Device<Space>& device,
                                                  const ModelConfiguration& model,
                                                  const ParameterLayout& layout,
                                                  const GenerationShape& shape) {
  require(!shape.samples || shape.tokens == 1, "a step that samples has one token of each sequence");
  return GenerationBuilder<Space, T>(device, model, layout, shape).build();
}

#define ENCORE_INSTANTIATE(SPACE)                                                                          \
  template GenerationProgram<SPACE> build_generation_program<SPACE, float>(                                \
      backend::Device<SPACE>&, const ModelConfiguration&, const ParameterLayout&, const GenerationShape&); \
  template GenerationProgram<SPACE> build_generation_program<SPACE, backend::bfloat16>(                    \
      backend::Device<SPACE>&, const ModelConfiguration&, const ParameterLayout&, const GenerationShape&);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
