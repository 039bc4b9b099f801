// SPDX-License-Identifier: Apache-2.0
#include "operations.hpp"

#include <encore/kernels/activation.hpp>
#include <encore/kernels/dropout.hpp>

namespace encore::model {

namespace {

kernels::Gelu gelu_of(Activation activation) {
  return activation == Activation::gelu ? kernels::Gelu::exact : kernels::Gelu::tanh;
}

}  // namespace

template <class Space, class T, class G>
MlpBuffers append_mlp_forward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch, std::int64_t layer,
                              BufferId input) {
  using Ops = Operations<Space, T>;
  const std::string parameters = "layer." + std::to_string(layer) + "/mlp";
  const std::string name = builder.prefix(microbatch) + parameters;
  const std::int64_t tokens = builder.tokens(), hidden = builder.model.hidden, ffn = builder.model.ffn;
  const Activation activation = builder.model.activation;
  MlpBuffers b{};
  b.norm = builder.norm(parameters + "/norm");
  b.up = builder.linear(parameters + "/up");
  b.down = builder.linear(parameters + "/down");
  b.input = input;
  b.result = builder.template add<T>(name + "/result", {tokens, hidden});
  b.normalized = builder.template add<T>(name + "/normalized", {tokens, hidden});
  b.statistics = builder.statistics(name + "/norm");
  b.raised =
      builder.template add<T>(name + "/raised", {tokens, activation == Activation::swiglu ? 2 * ffn : ffn});
  b.activated = builder.template add<T>(name + "/activated", {tokens, ffn});
  const bool drops = builder.drops();
  std::optional<BufferId> undropped;
  if (drops) {
    b.dropout_segment = builder.next_random_segment();
    undropped = builder.template add<T>(name + "/undropped", {tokens, hidden});
  }
  const BufferId probability = builder.scalar("dropout");
  builder.step.program.add_segment(
      {name + "/forward", Module::mlp, Phase::forward, static_cast<std::int32_t>(layer),
       static_cast<std::int32_t>(microbatch),
       buffers_of(input, b.norm.weight.value, value_of(b.norm.bias), b.up.weight.value, value_of(b.up.bias),
                  b.down.weight.value, value_of(b.down.bias), probability),
       buffers_of(b.result, b.normalized, b.statistics, b.raised, b.activated, undropped)},
      [=, epsilon = builder.model.norm_epsilon](Execution<Space>& x) {
        Ops::norm_forward(x, b.norm, b.statistics, b.input, b.normalized, epsilon);
        Ops::linear_forward(x, "encore::mlp::up", b.up, b.normalized, b.raised);
        if (activation == Activation::swiglu) {
          kernels::swiglu_forward<Space, T>(x.stream(), x.template matrix<const T>(b.raised),
                                            x.template matrix<T>(b.activated));
        } else {
          kernels::gelu_forward<Space, T>(x.stream(), gelu_of(activation),
                                          x.template matrix<const T>(b.raised),
                                          x.template matrix<T>(b.activated));
        }
        if (!drops) {
          Ops::linear_forward(x, "encore::mlp::down", b.down, b.activated, b.result, b.input);
        } else {
          Ops::linear_forward(x, "encore::mlp::down", b.down, b.activated, *undropped);
          kernels::dropout_forward<Space, T>(
              x.stream(), x.template matrix<const T>(*undropped), x.template matrix<const T>(b.input),
              x.template matrix<T>(b.result), x.template pointer<const double>(probability),
              x.device().random().state("default"), b.dropout_segment);
        }
      });
  return b;
}

template <class Space, class T, class G>
void append_mlp_backward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch, std::int64_t layer,
                         const MlpBuffers& b, BufferId residual) {
  using Ops = Operations<Space, T>;
  const std::string name = builder.prefix(microbatch) + "layer." + std::to_string(layer) + "/mlp";
  const std::int64_t tokens = builder.tokens(), hidden = builder.model.hidden, ffn = builder.model.ffn;
  const Activation activation = builder.model.activation;
  const auto temporary = [&](const std::string& suffix, std::int64_t columns) {
    return builder.template add<T>(name + suffix, {tokens, columns});
  };
  std::optional<BufferId> dropped;
  if (builder.drops()) dropped = temporary("/dropped_gradient", hidden);
  const BufferId output_gradient = dropped.value_or(residual);
  const BufferId activated_gradient = temporary("/activated_gradient", ffn);
  const BufferId normalized_gradient = temporary("/normalized_gradient", hidden);
  const BufferId norm_workspace = builder.template add<Accumulator<T>>(
      name + "/norm_workspace", Ops::norm_workspace(b.norm, tokens, hidden));
  const auto bias_workspace = [&](const LinearBuffers& linear, const std::string& suffix,
                                  std::int64_t columns) -> std::optional<BufferId> {
    if (!linear.bias) return std::nullopt;
    return builder.template add<Accumulator<T>>(name + suffix,
                                                {kernels::bias_workspace_rows(tokens), columns});
  };
  const auto down_workspace = bias_workspace(b.down, "/down_bias_workspace", hidden);
  const auto up_workspace =
      bias_workspace(b.up, "/up_bias_workspace", activation == Activation::swiglu ? 2 * ffn : ffn);
  const BufferId probability = builder.scalar("dropout");
  const bool accumulate = microbatch > 0;
  builder.step.program.add_segment(
      {name + "/backward", Module::mlp, Phase::backward, static_cast<std::int32_t>(layer),
       static_cast<std::int32_t>(microbatch),
       buffers_of(residual, b.input, b.normalized, b.statistics, b.activated, b.norm.weight.value,
                  b.up.weight.value, b.down.weight.value, probability),
       // `raised` turns into its own gradient: nothing reads it after this.
       buffers_of(residual, dropped, b.raised, activated_gradient, normalized_gradient, norm_workspace,
                  down_workspace, up_workspace, b.norm.weight.gradient, gradient_of(b.norm.bias),
                  b.up.weight.gradient, gradient_of(b.up.bias), b.down.weight.gradient,
                  gradient_of(b.down.bias))},
      [=](Execution<Space>& x) {
        if (dropped)
          kernels::dropout_backward<Space, T>(x.stream(), x.template matrix<const T>(residual),
                                              x.template matrix<T>(*dropped),
                                              x.template pointer<const double>(probability),
                                              x.device().random().state("default"), b.dropout_segment);
        Ops::linear_backward_input(x, "encore::mlp::down_dgrad", b.down, output_gradient, activated_gradient);
        Ops::template linear_backward_weight<G>(x, "encore::mlp::down_wgrad", b.down, b.activated,
                                                output_gradient, down_workspace, accumulate);
        if (activation == Activation::swiglu) {
          kernels::swiglu_backward<Space, T>(x.stream(), x.template matrix<const T>(b.raised),
                                             x.template matrix<const T>(activated_gradient),
                                             x.template matrix<T>(b.raised));
        } else {
          kernels::gelu_backward<Space, T>(
              x.stream(), gelu_of(activation), x.template matrix<const T>(b.raised),
              x.template matrix<const T>(activated_gradient), x.template matrix<T>(b.raised));
        }
        Ops::linear_backward_input(x, "encore::mlp::up_dgrad", b.up, b.raised, normalized_gradient);
        Ops::template linear_backward_weight<G>(x, "encore::mlp::up_wgrad", b.up, b.normalized, b.raised,
                                                up_workspace, accumulate);
        Ops::template norm_backward<G>(x, b.norm, b.statistics, b.input, normalized_gradient, residual, true,
                                       norm_workspace, accumulate);
      });
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                     \
  template MlpBuffers append_mlp_forward(StackBuilder<SPACE, T, G>&, std::int64_t, std::int64_t, BufferId); \
  template void append_mlp_backward(StackBuilder<SPACE, T, G>&, std::int64_t, std::int64_t,                 \
                                    const MlpBuffers&, BufferId);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
