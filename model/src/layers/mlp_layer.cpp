// SPDX-License-Identifier: Apache-2.0
#include "dense_activation.hpp"
#include "operations.hpp"

namespace encore::model {

namespace {

/// Adds what a block computes from its input before the down projection.
template <class Space, class T, class G>
void add_temporaries(StackBuilder<Space, T, G>& builder, const std::string& name, MlpBuffers& b) {
  const std::int64_t tokens = builder.tokens(), ffn = builder.model.ffn;
  b.normalized = builder.template add<T>(name + "/normalized", {tokens, builder.model.hidden});
  b.statistics = builder.statistics(name + "/norm");
  b.raised = builder.template add<T>(name + "/raised", {tokens, raised_width(builder.model, ffn)});
  b.activated = builder.template add<T>(name + "/activated", {tokens, ffn});
}

/// Appends the segment that computes the temporaries, and the result where there is to be one.
template <class Space, class T, class G>
void append_computation(StackBuilder<Space, T, G>& builder, Segment segment, const std::string& name,
                        const MlpBuffers& b, std::optional<BufferId> result) {
  using Ops = Operations<Space, T>;
  const DenseActivation activation = dense_activation(builder.model);
  std::optional<BufferId> undropped;
  if (builder.drops() && result)
    undropped = builder.template add<T>(name + "/undropped", {builder.tokens(), builder.model.hidden});
  const BufferId probability = builder.scalar("dropout");
  segment.reads =
      buffers_of(b.input, b.norm.weight.value, value_of(b.norm.bias), b.up.weight.value, value_of(b.up.bias));
  if (result) append(segment.reads, b.down.weight.value);
  if (result) append(segment.reads, value_of(b.down.bias));
  append(segment.reads, probability);
  segment.writes = buffers_of(result, b.normalized, b.statistics, b.raised, b.activated, undropped);
  builder.step.program.add_segment(
      std::move(segment), [=, epsilon = builder.model.norm_epsilon](Execution<Space>& x) {
        Ops::norm_forward(x, b.norm, b.statistics, b.input, b.normalized, epsilon);
        Ops::linear_forward(x, "encore::mlp::up", b.up, b.normalized, b.raised);
        activation.forward<T>(x, b.raised, b.activated);
        if (!result) return;
        Ops::linear_onto_residual(x, "encore::mlp::down", b.down, b.activated, b.input, undropped, *result,
                                  probability, b.dropout_segment);
      });
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
  b.result = builder.template add<T>(name + "/result", {builder.tokens(), builder.model.hidden});
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
    b.result = builder.template add<T>(name + "/result", {builder.tokens(), builder.model.hidden});
  add_temporaries(builder, name, b);
  append_computation(builder, segment_of_layer(name, Module::mlp, Phase::backward, layer, microbatch), name,
                     b, with_result ? std::optional(b.result) : std::nullopt);
  return b;
}

template <class Space, class T, class G>
std::vector<LinearGradient> append_mlp_backward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                                std::int64_t layer, const MlpBuffers& b, BufferId residual) {
  using Ops = Operations<Space, T>;
  const std::string name = builder.prefix(microbatch) + "layer." + std::to_string(layer) + "/mlp";
  const std::int64_t tokens = builder.tokens(), hidden = builder.model.hidden, ffn = builder.model.ffn;
  const DenseActivation activation = dense_activation(builder.model);
  const bool delayed = builder.shape.delay_weight_gradients;
  const auto temporary = [&](const std::string& suffix, std::int64_t columns) {
    return builder.template add<T>(name + suffix, {tokens, columns});
  };
  const BranchGradient output_gradient = branch_gradient(builder, name, residual);
  const BufferId activated_gradient = temporary("/activated_gradient", ffn);
  const BufferId normalized_gradient = temporary("/normalized_gradient", hidden);
  const BufferId norm_workspace = builder.template add<Accumulator<T>>(
      name + "/norm_workspace", Ops::norm_workspace(b.norm, tokens, hidden));
  // `raised` turns into its own gradient: nothing else reads it any more.
  std::vector<LinearGradient> weights{
      linear_gradient(builder, name + "/down_bias_workspace", "encore::mlp::down_wgrad", b.down, b.activated,
                      output_gradient.value),
      linear_gradient(builder, name + "/up_bias_workspace", "encore::mlp::up_wgrad", b.up, b.normalized,
                      b.raised)};
  if (!delayed)
    for (LinearGradient& gradient : weights) gradient.accumulate = builder.accumulates(gradient.linear);
  const BufferId probability = builder.scalar("dropout");
  const bool accumulate = builder.accumulates(b.norm);
  std::vector<BufferId> writes =
      buffers_of(residual, output_gradient.dropped, output_gradient.kept, b.raised, activated_gradient,
                 normalized_gradient, norm_workspace, b.norm.weight.gradient, gradient_of(b.norm.bias));
  if (!delayed) append(writes, weights);
  builder.step.program.add_segment(
      with_gradients_beside(
          builder,
          {name + "/backward", Module::mlp, Phase::backward, static_cast<std::int32_t>(layer),
           static_cast<std::int32_t>(microbatch),
           buffers_of(residual, b.input, b.normalized, b.statistics, b.activated, b.norm.weight.value,
                      b.up.weight.value, b.down.weight.value, probability),
           writes},
          norm_workspace, delayed ? std::vector<LinearGradient>() : weights),
      [=](Execution<Space>& x) {
        Ops::fill_branch_gradient(x, "encore::mlp::output_gradient", output_gradient, residual, probability,
                                  b.dropout_segment);
        Ops::linear_backward_input(x, "encore::mlp::down_dgrad", b.down, output_gradient.value,
                                   activated_gradient);
        if (!delayed) Ops::template linear_backward_weight<G>(x, weights[0]);
        activation.backward<T>(x, b.raised, activated_gradient);
        Ops::linear_backward_input(x, "encore::mlp::up_dgrad", b.up, b.raised, normalized_gradient);
        if (!delayed) Ops::template linear_backward_weight<G>(x, weights[1]);
        Ops::template norm_backward<G>(x, b.norm, b.statistics, b.input, normalized_gradient, residual, true,
                                       norm_workspace, accumulate);
      });
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
