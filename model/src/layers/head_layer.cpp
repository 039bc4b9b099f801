// SPDX-License-Identifier: Apache-2.0
#include "operations.hpp"

#include <encore/kernels/cross_entropy.hpp>

namespace encore::model {

template <class Space, class T, class G>
void append_label_count(StackBuilder<Space, T, G>& builder) {
  const BufferId labels = builder.step.labels, count = builder.step.label_count;
  builder.step.program.add_segment(
      {"label_count", Module::head, Phase::forward, -1, -1, buffers_of(labels), buffers_of(count)},
      [=](Execution<Space>& x) {
        kernels::count_labels<Space>(x.stream(), x.template vector<const std::int32_t>(labels),
                                     x.template pointer<double>(count));
      });
}

template <class Space, class T, class G>
HeadBuffers append_head_forward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch, BufferId input) {
  using Ops = Operations<Space, T>;
  const std::string name = builder.prefix(microbatch) + "head";
  const std::int64_t tokens = builder.tokens(), hidden = builder.model.hidden, vocab = builder.model.vocab;
  const bool training = builder.training(), accumulate = builder.accumulates(builder.step.loss);
  HeadBuffers b{};
  b.norm = builder.norm("head/norm");
  b.weight = builder.parameter(builder.model.tie_embeddings ? "embedding/tokens" : "head/logits.weight");
  b.input = input;
  b.normalized = builder.template add<T>(name + "/normalized", {tokens, hidden});
  b.statistics = builder.statistics(name + "/norm");
  b.logits = builder.template add<T>(name + "/logits", {tokens, vocab},
                                     training ? BufferKind::activation : BufferKind::metric);
  if (!training) builder.step.logits.push_back(b.logits);
  const BufferId row_loss = builder.template add<Accumulator<T>>(name + "/row_loss", {tokens});
  const BufferId labels = builder.step.program.outline()
                              .find_buffer("microbatch." + std::to_string(microbatch) + "/labels")
                              .value();
  const BufferId count = builder.step.label_count, loss = builder.step.loss;
  builder.step.program.add_segment(
      {name + "/forward", Module::head, Phase::forward, -1, static_cast<std::int32_t>(microbatch),
       buffers_of(input, b.norm.weight.value, value_of(b.norm.bias), b.weight.value, labels, count),
       buffers_of(b.normalized, b.statistics, b.logits, row_loss, loss)},
      [=, epsilon = builder.model.norm_epsilon](Execution<Space>& x) {
        Ops::norm_forward(x, b.norm, b.statistics, b.input, b.normalized, epsilon);
        Ops::linear_forward(x, "encore::head::logits", {b.weight, std::nullopt, false}, b.normalized,
                            b.logits);
        const double* label_count = x.template pointer<const double>(count);
        kernels::cross_entropy<Space, T>(x.stream(), x.template matrix<T>(b.logits),
                                         x.template vector<const std::int32_t>(labels), label_count,
                                         x.template vector<Accumulator<T>>(row_loss), training);
        kernels::reduce_loss<Space, Accumulator<T>>(
            x.stream(), x.template vector<const Accumulator<T>>(row_loss), label_count,
            x.template pointer<double>(loss), accumulate);
      });
  return b;
}

template <class Space, class T, class G>
void append_head_backward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch, const HeadBuffers& b,
                          BufferId residual) {
  using Ops = Operations<Space, T>;
  const std::string name = builder.prefix(microbatch) + "head";
  const std::int64_t tokens = builder.tokens(), hidden = builder.model.hidden;
  const BufferId normalized_gradient =
      builder.template add<T>(name + "/normalized_gradient", {tokens, hidden});
  const BufferId norm_workspace = builder.template add<Accumulator<T>>(
      name + "/norm_workspace", Ops::norm_workspace(b.norm, tokens, hidden));
  const LinearBuffers linear{b.weight, std::nullopt, false};
  const LinearGradient weight_gradient{
      "encore::head::logits_wgrad", linear, b.normalized, b.logits, std::nullopt,
      builder.accumulates(linear)};
  const bool accumulate = builder.accumulates(b.norm);
  builder.step.program.add_segment(
      with_gradients_beside(
          builder,
          {name + "/backward", Module::head, Phase::backward, -1, static_cast<std::int32_t>(microbatch),
           buffers_of(b.input, b.norm.weight.value, b.weight.value, b.normalized, b.statistics, b.logits),
           buffers_of(residual, normalized_gradient, norm_workspace, weight_gradient, b.norm.weight.gradient,
                      gradient_of(b.norm.bias))},
          norm_workspace, {}),
      [=](Execution<Space>& x) {
        Ops::linear_backward_input(x, "encore::head::logits_dgrad", linear, b.logits, normalized_gradient);
        Ops::template linear_backward_weight<G>(x, weight_gradient);
        Ops::template norm_backward<G>(x, b.norm, b.statistics, b.input, normalized_gradient, residual, false,
                                       norm_workspace, accumulate);
      });
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                         \
  template void append_label_count(StackBuilder<SPACE, T, G>&);                                 \
  template HeadBuffers append_head_forward(StackBuilder<SPACE, T, G>&, std::int64_t, BufferId); \
  template void append_head_backward(StackBuilder<SPACE, T, G>&, std::int64_t, const HeadBuffers&, BufferId);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
