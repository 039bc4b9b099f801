// SPDX-License-Identifier: Apache-2.0
#include "attention_geometry.hpp"
#include "tensor_parallel.hpp"

#include <encore/kernels/attention_sinks.hpp>

namespace encore::model {

namespace {

/// Adds what a block computes from its input before the output projection.
template <class Space, class T, class G>
void add_temporaries(StackBuilder<Space, T, G>& builder, const std::string& name, AttentionBuffers& b) {
  const AttentionGeometry geometry = geometry_of(builder, b.window);
  const std::int64_t tokens = builder.tokens();
  b.normalized =
      builder.template add<T>(name + "/normalized", {builder.stream_tokens(), builder.model.hidden});
  b.statistics = builder.statistics(name + "/norm");
  b.projected = builder.template add<T>(name + "/qkv", {tokens, geometry.row()});
  if (geometry.normalizes)
    b.rotated = builder.template add<T>(name + "/rotated", {tokens, geometry.rotated_row()});
  if (b.sinks && !std::is_same_v<T, Accumulator<T>>)
    b.sink_logits = builder.template add<Accumulator<T>>(name + "/sink_logits", {geometry.shape.heads});
  b.context =
      builder.template add<T>(name + "/context", {tokens, geometry.shape.heads * geometry.shape.head_dim});
  b.log_sum_exp = builder.template add<Accumulator<T>>(
      name + "/log_sum_exp", {geometry.shape.batch, geometry.shape.heads, geometry.shape.tokens});
}

/// The sinks in the attention's own type; null without any.
template <class T, class Space>
const Accumulator<T>* sinks_of(Execution<Space>& x, const AttentionBuffers& b) {
  if (!b.sinks) return nullptr;
  return x.template pointer<const Accumulator<T>>(b.sink_logits.value_or(b.sinks->value));
}

/// Appends what computes the temporaries, and the result where there is to be one. Returns the normalized input of all
/// tokens.
template <class Space, class T, class G>
BufferId append_computation(StackBuilder<Space, T, G>& builder, Segment place, const std::string& name,
                            const AttentionBuffers& b, std::optional<BufferId> result) {
  using Ops = Operations<Space, T>;
  const AttentionGeometry geometry = geometry_of(builder, b.window);
  BlockSegments<Space> segments(builder.step.program, std::move(place));
  std::optional<BranchTerm> term;
  if (result) term = branch_term(builder, name, b.input, *result);
  const BufferId attention_probability = builder.scalar("attention_dropout");
  const BufferId cosine = builder.step.rope_cosine, sine = builder.step.rope_sine;
  append_norm(builder, segments, b.norm, b.statistics, b.input, b.normalized);
  const BufferId normalized = append_gather(builder, segments, "gather", name + "/gathered", b.normalized);
  std::vector<BufferId> reads =
      buffers_of(normalized, b.qkv.weight.value, value_of(b.qkv.bias), value_of(b.query_norm),
                 value_of(b.key_norm), value_of(b.sinks), cosine, sine, attention_probability);
  std::vector<BufferId> writes = buffers_of(b.projected, b.rotated, b.sink_logits, b.context, b.log_sum_exp);
  if (term) append(reads, reads_of(b.output, *term));
  if (term) append(writes, term->value);
  segments.compute("products", reads, writes, [=](Execution<Space>& x) {
    Ops::linear_forward(x, "encore::attn::qkv", b.qkv, normalized, b.projected);
    const backend::AttentionDropout dropout =
        dropout_of(x, geometry, attention_probability, b.attention_dropout_segment);
    const HeadOperations<Space, T> operations{geometry, cosine, sine};
    const auto rotation = operations.within_attention(x, b, dropout);
    operations.forward(x, b, rotation);
    if (b.sink_logits)
      kernels::attention_sinks_forward<Space, T>(x.stream(), x.template vector<const T>(b.sinks->value),
                                                 x.template vector<Accumulator<T>>(*b.sink_logits));
    const AttentionInputs<T> inputs = inputs_of<T>(x, geometry, b);
    x.device().attention().template forward<T>(
        x.stream(), geometry.shape, dropout, inputs.query, inputs.key, inputs.value,
        geometry.in_context(x.template pointer<T>(b.context)),
        x.template pointer<Accumulator<T>>(b.log_sum_exp), sinks_of<T>(x, b),
        rotation.of_inputs ? rotation : backend::AttentionRotation<Accumulator<T>>{});
    if (term) linear_term<T>(x, "encore::attn::output", b.output, b.context, *term);
  });
  if (term) append_branch(builder, segments, *term, b.input, *result, b.dropout_segment);
  segments.end();
  return normalized;
}

}  // namespace

template <class Space, class T, class G>
AttentionBuffers append_attention_forward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                          std::int64_t layer, BufferId input, std::int64_t window) {
  const std::string parameters = "layer." + std::to_string(layer) + "/attn";
  const std::string name = builder.prefix(microbatch) + parameters;
  AttentionBuffers b{};
  b.norm = builder.norm(parameters + "/norm");
  b.qkv = builder.linear(parameters + "/qkv");
  b.output = builder.linear(parameters + "/output");
  if (builder.model.query_key_norm) {
    b.query_norm = builder.parameter(parameters + "/query_norm.weight");
    b.key_norm = builder.parameter(parameters + "/key_norm.weight");
  }
  if (builder.model.attention_sinks) b.sinks = builder.parameter(parameters + "/sinks");
  b.window = window;
  b.input = input;
  b.result = builder.template add<T>(name + "/result", {builder.stream_tokens(), builder.model.hidden});
  b.attention_dropout_segment = builder.random_segment(microbatch, layer, RandomPlace::attention);
  b.dropout_segment = builder.random_segment(microbatch, layer, RandomPlace::attention_result);
  add_temporaries(builder, name, b);
  append_computation(builder,
                     segment_of_layer(name + "/forward", Module::attn, Phase::forward, layer, microbatch),
                     name, b, b.result);
  return b;
}

template <class Space, class T, class G>
AttentionBuffers append_attention_recompute(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                            std::int64_t layer, const AttentionBuffers& forward,
                                            bool with_result) {
  const std::string name = builder.prefix(microbatch) + "layer." + std::to_string(layer) + "/attn/recompute";
  AttentionBuffers b = forward;
  if (with_result)
    b.result = builder.template add<T>(name + "/result", {builder.stream_tokens(), builder.model.hidden});
  add_temporaries(builder, name, b);
  b.gathered =
      append_computation(builder, segment_of_layer(name, Module::attn, Phase::backward, layer, microbatch),
                         name, b, with_result ? std::optional(b.result) : std::nullopt);
  return b;
}

template <class Space, class T, class G>
std::vector<LinearGradient> append_attention_backward(StackBuilder<Space, T, G>& builder,
                                                      std::int64_t microbatch, std::int64_t layer,
                                                      const AttentionBuffers& b, BufferId residual) {
  using Ops = Operations<Space, T>;
  const std::string name = builder.prefix(microbatch) + "layer." + std::to_string(layer) + "/attn";
  const std::int64_t tokens = builder.tokens(), hidden = builder.model.hidden;
  const AttentionGeometry geometry = geometry_of(builder, b.window);
  const bool delayed = builder.shape.delay_weight_gradients;
  const auto temporary = [&](const std::string& suffix, std::int64_t columns) {
    return builder.template add<T>(name + suffix, {tokens, columns});
  };
  BlockSegments<Space> segments(builder.step.program, segment_of_layer(name + "/backward", Module::attn,
                                                                       Phase::backward, layer, microbatch));
  const BufferId output_gradient = append_branch_gradient(
      builder, segments, name, "encore::attn::output_gradient", residual, b.dropout_segment);
  const BufferId normalized = gathered_input(builder, segments, name, b);
  const BufferId context_gradient =
      temporary("/context_gradient", geometry.shape.heads * geometry.shape.head_dim);
  const BufferId projected_gradient = temporary("/qkv_gradient", geometry.row());
  const BufferId normalized_gradient = temporary("/normalized_gradient", hidden);
  // Never dereferenced: only tells that there is dropout, for which the engines need other workspaces.
  static constexpr double some_probability = 0;
  const backend::AttentionDropout sizing = geometry.drops_attention
                                               ? backend::AttentionDropout{&some_probability, nullptr, 0}
                                               : backend::AttentionDropout{};
  const BufferId attention_workspace = builder.template add<std::uint8_t>(
      name + "/attention_workspace",
      {static_cast<std::int64_t>(
          builder.device.attention().template workspace_bytes<T>(geometry.shape, sizing))});
  const BufferId norm_workspace = builder.template add<Accumulator<T>>(
      name + "/norm_workspace", Ops::norm_workspace(b.norm, builder.stream_tokens(), hidden));
  std::optional<BufferId> head_workspace, sinks_workspace;
  if (b.rotated)
    head_workspace = builder.template add<Accumulator<T>>(
        name + "/head_norm_workspace", {kernels::head_norm_workspace_rows(tokens), geometry.shape.head_dim});
  if (b.sinks)
    sinks_workspace = builder.template add<Accumulator<T>>(
        name + "/sinks_workspace", {kernels::attention_sinks_workspace_rows(tokens), geometry.shape.heads});
  std::vector<LinearGradient> weights{
      linear_gradient(builder, name + "/output_bias_workspace", "encore::attn::output_wgrad", b.output,
                      b.context, output_gradient),
      linear_gradient(builder, name + "/qkv_bias_workspace", "encore::attn::qkv_wgrad", b.qkv, normalized,
                      projected_gradient)};
  if (!delayed)
    for (LinearGradient& gradient : weights) gradient.accumulate = builder.accumulates(gradient.linear);
  const BufferId attention_probability = builder.scalar("attention_dropout");
  const BufferId cosine = builder.step.rope_cosine, sine = builder.step.rope_sine;
  bool accumulate = false;
  for (const auto& parameter : {b.query_norm, b.key_norm, b.sinks})
    if (parameter) accumulate = builder.accumulates(*parameter);  // always written together
  // Of the heads of this rank.
  for (const auto& parameter : {b.query_norm, b.key_norm})
    if (parameter) builder.add_terms(*parameter);
  std::vector<BufferId> writes = buffers_of(
      context_gradient, projected_gradient, normalized_gradient, attention_workspace, head_workspace,
      sinks_workspace, gradient_of(b.query_norm), gradient_of(b.key_norm), gradient_of(b.sinks));
  // Behind the sum over ranks, for which the rest of the pass waits.
  const bool behind = builder.is_in(RankGroup::tensor);
  if (!delayed && !behind) append(writes, weights[0]);
  segments.compute(
      "products",
      buffers_of(output_gradient, normalized, b.projected, b.context, b.log_sum_exp, b.qkv.weight.value,
                 b.output.weight.value, cosine, sine, attention_probability, b.rotated,
                 value_of(b.query_norm), value_of(b.key_norm), value_of(b.sinks)),
      writes,
      [=](Execution<Space>& x) {
        Ops::linear_backward_input(x, "encore::attn::output_dgrad", b.output, output_gradient,
                                   context_gradient);
        if (!delayed && !behind) Ops::template linear_backward_weight<G>(x, weights[0]);
        if (b.sinks)
          kernels::attention_sinks_backward<Space, T, G>(
              x.stream(), x.template vector<const T>(b.sinks->value), x.template matrix<const T>(b.context),
              x.template matrix<const T>(context_gradient),
              x.template matrix<const Accumulator<T>>(b.log_sum_exp),
              x.template vector<G>(*b.sinks->gradient), x.template matrix<Accumulator<T>>(*sinks_workspace),
              accumulate);
        const AttentionInputs<T> inputs = inputs_of<T>(x, geometry, b);
        const backend::AttentionDropout dropout =
            dropout_of(x, geometry, attention_probability, b.attention_dropout_segment);
        const HeadOperations<Space, T> operations{geometry, cosine, sine};
        const auto rotation = operations.within_attention(x, b, dropout);
        T* gradient = x.template pointer<T>(projected_gradient);
        const std::int64_t keys = geometry.shape.heads, values = keys + geometry.shape.kv_heads;
        x.device().attention().template backward<T>(
            x.stream(), geometry.shape, dropout, inputs.query, inputs.key, inputs.value,
            geometry.in_context(x.template pointer<const T>(b.context)),
            x.template pointer<const Accumulator<T>>(b.log_sum_exp),
            geometry.in_context(x.template pointer<const T>(context_gradient)),
            geometry.in_projected(gradient, 0), geometry.in_projected(gradient, keys),
            geometry.in_projected(gradient, values),
            reinterpret_cast<std::byte*>(x.template pointer<std::uint8_t>(attention_workspace)), rotation);
        operations.template backward<G>(x, b, projected_gradient, head_workspace, accumulate, rotation);
        Ops::linear_backward_input(x, "encore::attn::qkv_dgrad", b.qkv, projected_gradient,
                                   normalized_gradient);
      },
      delayed || behind ? std::vector<BufferId>() : lingering(builder, {weights[0]}));
  const BufferId own_gradient =
      append_sum(builder, segments, "sum", name + "/own_normalized_gradient", normalized_gradient);
  if (!delayed) append_weights(builder, segments, behind ? weights : std::vector{weights[1]});
  append_norm_backward(builder, segments, b.norm, b.statistics, b.input, own_gradient, residual, true,
                       norm_workspace);
  segments.end();
  if (!delayed) weights.clear();
  return weights;
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                      \
  template AttentionBuffers append_attention_forward(StackBuilder<SPACE, T, G>&, std::int64_t, std::int64_t, \
                                                     BufferId, std::int64_t);                                \
  template AttentionBuffers append_attention_recompute(StackBuilder<SPACE, T, G>&, std::int64_t,             \
                                                       std::int64_t, const AttentionBuffers&, bool);         \
  template std::vector<LinearGradient> append_attention_backward(                                            \
      StackBuilder<SPACE, T, G>&, std::int64_t, std::int64_t, const AttentionBuffers&, BufferId);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
