// SPDX-License-Identifier: Apache-2.0
#include "dense_activation.hpp"
#include "tensor_parallel.hpp"

namespace encore::model {

namespace {

/// Adds what a block computes from its input before the down projection.
template <class Space, class T, class G>
void add_temporaries(StackBuilder<Space, T, G>& builder, const std::string& name, MlpBuffers& b) {
  const std::int64_t tokens = builder.tokens(), ffn = builder.local.ffn;
  b.normalized =
      builder.template add<T>(name + "/normalized", {builder.stream_tokens(), builder.model.hidden});
  b.statistics = builder.statistics(name + "/norm");
  b.raised = builder.template add<T>(name + "/raised", {tokens, raised_width(builder.model, ffn)});
  b.activated = builder.template add<T>(name + "/activated", {tokens, ffn});
}

/// Appends what computes the temporaries, and the result where there is to be one. Returns the normalized input of all
/// tokens.
template <class Space, class T, class G>
BufferId append_computation(StackBuilder<Space, T, G>& builder, Segment place, const std::string& name,
                            const MlpBuffers& b, std::optional<BufferId> result) {
  using Ops = Operations<Space, T>;
  const DenseActivation activation = dense_activation(builder.model);
  BlockSegments<Space> segments(builder.step.program, std::move(place));
  std::optional<BranchTerm> term;
  if (result) term = branch_term(builder, name, b.input, *result);
  append_norm(builder, segments, b.norm, b.statistics, b.input, b.normalized);
  const BufferId normalized = append_gather(builder, segments, "gather", name + "/gathered", b.normalized);
  std::vector<BufferId> reads = buffers_of(normalized, b.up.weight.value, value_of(b.up.bias));
  std::vector<BufferId> writes = buffers_of(b.raised, b.activated);
  if (term) append(reads, reads_of(b.down, *term));
  if (term) append(writes, term->value);
  segments.compute("products", reads, writes, [=](Execution<Space>& x) {
    Ops::linear_forward(x, "encore::mlp::up", b.up, normalized, b.raised);
    activation.forward<T>(x, b.raised, b.activated);
    if (term) linear_term<T>(x, "encore::mlp::down", b.down, b.activated, *term);
  });
  if (term) append_branch(builder, segments, *term, b.input, *result, b.dropout_segment);
  segments.end();
  return normalized;
}

}  // namespace

template <class Space, class T, class G>
MlpBuffers append_mlp_forward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch, std::int64_t layer,
                              BufferId input) {
  const std::string parameters = "layer." + std::to_string(layer) + "/mlp";
  const std::string name = builder.prefix(microbatch) + parameters;
  MlpBuffers b{};
  b.norm = builder.norm(parameters + "/norm");
  b.up = builder.linear(parameters + "/up");
  b.down = builder.linear(parameters + "/down");
  b.input = input;
  b.result = builder.template add<T>(name + "/result", {builder.stream_tokens(), builder.model.hidden});
  b.dropout_segment = builder.random_segment(microbatch, layer, RandomPlace::mlp_result);
  add_temporaries(builder, name, b);
  append_computation(builder,
                     segment_of_layer(name + "/forward", Module::mlp, Phase::forward, layer, microbatch),
                     name, b, b.result);
  return b;
}

template <class Space, class T, class G>
MlpBuffers append_mlp_recompute(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                std::int64_t layer, const MlpBuffers& forward, bool with_result) {
  const std::string name = builder.prefix(microbatch) + "layer." + std::to_string(layer) + "/mlp/recompute";
  MlpBuffers b = forward;
  if (with_result)
    b.result = builder.template add<T>(name + "/result", {builder.stream_tokens(), builder.model.hidden});
  add_temporaries(builder, name, b);
  b.gathered =
      append_computation(builder, segment_of_layer(name, Module::mlp, Phase::backward, layer, microbatch),
                         name, b, with_result ? std::optional(b.result) : std::nullopt);
  return b;
}

template <class Space, class T, class G>
std::vector<LinearGradient> append_mlp_backward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                                std::int64_t layer, const MlpBuffers& b, BufferId residual) {
  using Ops = Operations<Space, T>;
  const std::string name = builder.prefix(microbatch) + "layer." + std::to_string(layer) + "/mlp";
  const std::int64_t tokens = builder.tokens(), hidden = builder.model.hidden, ffn = builder.local.ffn;
  const DenseActivation activation = dense_activation(builder.model);
  const bool delayed = builder.shape.delay_weight_gradients;
  const auto temporary = [&](const std::string& suffix, std::int64_t columns) {
    return builder.template add<T>(name + suffix, {tokens, columns});
  };
  BlockSegments<Space> segments(builder.step.program, segment_of_layer(name + "/backward", Module::mlp,
                                                                       Phase::backward, layer, microbatch));
  const BufferId output_gradient = append_branch_gradient(
      builder, segments, name, "encore::mlp::output_gradient", residual, b.dropout_segment);
  const BufferId normalized = gathered_input(builder, segments, name, b);
  const BufferId activated_gradient = temporary("/activated_gradient", ffn);
  const BufferId normalized_gradient = temporary("/normalized_gradient", hidden);
  const BufferId norm_workspace = builder.template add<Accumulator<T>>(
      name + "/norm_workspace", Ops::norm_workspace(b.norm, builder.stream_tokens(), hidden));
  // `raised` turns into its own gradient: nothing else reads it any more.
  std::vector<LinearGradient> weights{
      linear_gradient(builder, name + "/down_bias_workspace", "encore::mlp::down_wgrad", b.down, b.activated,
                      output_gradient),
      linear_gradient(builder, name + "/up_bias_workspace", "encore::mlp::up_wgrad", b.up, normalized,
                      b.raised)};
  if (!delayed)
    for (LinearGradient& gradient : weights) gradient.accumulate = builder.accumulates(gradient.linear);
  std::vector<BufferId> writes = buffers_of(b.raised, activated_gradient, normalized_gradient);
  // Behind the sum over ranks, for which the rest of the pass waits.
  const bool behind = builder.is_in(RankGroup::tensor);
  if (!delayed && !behind) append(writes, weights[0]);
  segments.compute(
      "products",
      buffers_of(output_gradient, normalized, b.activated, b.up.weight.value, b.down.weight.value), writes,
      [=](Execution<Space>& x) {
        Ops::linear_backward_input(x, "encore::mlp::down_dgrad", b.down, output_gradient, activated_gradient);
        if (!delayed && !behind) Ops::template linear_backward_weight<G>(x, weights[0]);
        activation.backward<T>(x, b.raised, activated_gradient);
        Ops::linear_backward_input(x, "encore::mlp::up_dgrad", b.up, b.raised, normalized_gradient);
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

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                     \
  template MlpBuffers append_mlp_forward(StackBuilder<SPACE, T, G>&, std::int64_t, std::int64_t, BufferId); \
  template MlpBuffers append_mlp_recompute(StackBuilder<SPACE, T, G>&, std::int64_t, std::int64_t,          \
                                           const MlpBuffers&, bool);                                        \
  template std::vector<LinearGradient> append_mlp_backward(StackBuilder<SPACE, T, G>&, std::int64_t,        \
                                                           std::int64_t, const MlpBuffers&, BufferId);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
