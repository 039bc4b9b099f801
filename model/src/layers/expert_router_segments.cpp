// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/residual.hpp>

#include "dense_activation.hpp"
#include "expert_segments.hpp"

namespace encore::model {

namespace {

/// logits = router(normalized), in the accumulator's type: a rounded logit could change an expert's rank.
template <class Space, class T>
void router_product(Execution<Space>& x, const LinearBuffers& router, BufferId input, BufferId logits) {
  using A = Accumulator<T>;
  backend::MatrixProductOptions<A> options;
  if (router.bias) options.bias = x.template pointer<const T>(router.bias->value);
  using enum backend::Transpose;
  x.device().blas().template multiply<T, A>(
      x.stream(), "encore::moe::router", no,
      backend::operand<const T, Space>(x.template matrix<const T>(input)), yes,
      backend::operand<const T, Space>(x.template matrix<const T>(router.weight.value)),
      backend::operand<A, Space>(x.template matrix<A>(logits)), options);
}

/// input_gradient += output_gradient * weight
template <class Space, class T>
void add_backward_input(Execution<Space>& x, const char* label, const LinearBuffers& linear,
                        BufferId output_gradient, BufferId input_gradient) {
  backend::MatrixProductOptions<T> options;
  const auto sum = x.template matrix<T>(input_gradient);
  options.addend = sum.data();
  options.beta = 1.0F;
  using enum backend::Transpose;
  x.device().blas().template multiply<T, T>(
      x.stream(), label, no, backend::operand<const T, Space>(x.template matrix<const T>(output_gradient)),
      linear.inputs_first ? yes : no,
      backend::operand<const T, Space>(x.template matrix<const T>(linear.weight.value)),
      backend::operand<T, Space>(sum), options);
}

template <class Space, class T>
backend::Vector<const T, Space> vector_or_empty(Execution<Space>& x, const std::optional<BufferId>& id) {
  return id ? x.template vector<const T>(*id) : backend::Vector<const T, Space>();
}

}  // namespace

template <class Space, class T, class G>
void append_expert_router(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                          const std::string& name, ExpertBuffers& b, bool counts) {
  using A = Accumulator<T>;
  using Ops = Operations<Space, T>;
  const ExpertGeometry g = expert_geometry(builder);
  const std::int64_t tokens = g.tokens, experts = g.experts, topk = g.rules.topk;
  const BufferId own_normalized =
      builder.template add<T>(name + "/normalized", {builder.stream_tokens(), g.hidden});
  b.statistics = builder.statistics(name + "/norm");
  BlockSegments<Space> segments(builder.step.program,
                                place.segment(builder.prefix(place.microbatch), Module::moe_router));
  append_norm(builder, segments, b.norm, b.statistics, b.input, own_normalized);
  b.normalized = append_gather(builder, segments, "gather", name + "/gathered", own_normalized);
  if (builder.jitters()) b.jittered = builder.template add<T>(name + "/jittered", {tokens, g.hidden});
  b.logits = builder.template add<A>(name + "/logits", {tokens, experts});
  b.log_sum_exp = builder.template add<A>(name + "/log_sum_exp", {tokens});
  b.weights = builder.template add<A>(name + "/weights", {tokens, topk});
  b.experts = builder.template add<std::int32_t>(name + "/experts", {tokens, topk});
  const bool shared = b.shared_up.has_value();
  if (shared) {
    b.shared_raised = builder.template add<T>(name + "/shared_raised", {tokens, g.shared_raised});
    b.shared_activated = builder.template add<T>(name + "/shared_activated", {tokens, g.shared_ffn});
    b.shared_result = builder.template add<T>(name + "/shared_result", {tokens, g.hidden});
  }
  const std::string parameters = "layer." + std::to_string(place.layer) + "/moe";
  std::optional<BufferId> counts_of_step, workspace, balance_loss, z_loss;
  bool accumulate_counts = false, accumulate_losses = false;
  if (counts) {
    b.tokens_of_expert = builder.template add<std::int32_t>(name + "/tokens_of_expert", {experts});
    b.probability_sums = builder.template add<A>(name + "/probability_sums", {experts});
    b.totals = builder.template add<double>(name + "/router_totals", {kernels::router_total_count()});
    workspace = builder.template add<A>(name + "/router_workspace",
                                        {kernels::router_workspace_rows(tokens), experts});
    counts_of_step = builder.step.program.outline().find_buffer(parameters + "/tokens_of_expert_in_step");
    balance_loss = builder.step.balance_loss;
    z_loss = builder.step.z_loss;
    accumulate_counts = builder.accumulates(*counts_of_step);
    accumulate_losses = builder.accumulates(*balance_loss);
  }
  const BufferId epsilon = builder.scalar("router_jitter");
  std::vector<BufferId> reads = buffers_of(b.normalized, b.router.weight.value, value_of(b.router.bias),
                                           b.selection_bias, b.live, epsilon);
  if (shared)
    for (const LinearBuffers& linear : {*b.shared_up, *b.shared_down}) {
      append(reads, linear.weight.value);
      append(reads, value_of(linear.bias));
    }
  std::vector<BufferId> writes = buffers_of(b.jittered, b.logits, b.log_sum_exp, b.weights, b.experts,
                                            b.shared_raised, b.shared_activated, b.shared_result);
  if (counts)
    for (const auto& id :
         {b.tokens_of_expert, b.probability_sums, b.totals, workspace, counts_of_step, balance_loss, z_loss})
      append(writes, id);
  // A loss is the mean over the microbatches of all ranks, as their gradients are summed with this factor.
  const double factor = 1.0 / static_cast<double>(builder.shape.microbatches * builder.shard().layout.data());
  const DenseActivation activation = dense_activation(builder.model);
  LinearBuffers shared_down = b.shared_down.value_or(b.router);
  if (!g.first_term) shared_down.bias.reset();
  segments.compute("router", reads, writes, [=, b = b](Execution<Space>& x) {
    if (b.jittered)
      kernels::router_jitter<Space, T>(
          x.stream(), x.template matrix<const T>(b.normalized), x.template matrix<T>(*b.jittered),
          x.template pointer<const double>(epsilon), x.device().random().state("default"), b.jitter_segment);
    router_product<Space, T>(x, b.router, b.jittered.value_or(b.normalized), b.logits);
    const auto logits = x.template matrix<const A>(b.logits);
    const auto live = x.template vector<const std::int32_t>(b.live);
    kernels::router_forward<Space, A>(
        x.stream(), g.rules, logits, vector_or_empty<Space, A>(x, b.selection_bias), live,
        x.template matrix<A>(b.weights), x.template matrix<std::int32_t>(b.experts),
        x.template vector<A>(b.log_sum_exp));
    if (counts) {
      const backend::BesideScope<Space> beside(x.stream());
      kernels::router_statistics<Space, A>(
          x.stream(), g.rules, logits, x.template vector<const A>(b.log_sum_exp),
          x.template matrix<const std::int32_t>(b.experts), live,
          x.template vector<std::int32_t>(*b.tokens_of_expert), x.template vector<A>(*b.probability_sums),
          x.template vector<double>(*b.totals), x.template matrix<A>(*workspace));
      const auto of_microbatch = x.template vector<const std::int32_t>(*b.tokens_of_expert);
      kernels::accumulate_counts<Space>(x.stream(), of_microbatch,
                                        x.template vector<std::int32_t>(*counts_of_step), accumulate_counts);
      kernels::router_losses<Space, A>(
          x.stream(), g.rules, of_microbatch, x.template vector<const A>(*b.probability_sums),
          x.template vector<const double>(*b.totals), factor, x.template pointer<double>(*balance_loss),
          x.template pointer<double>(*z_loss), accumulate_losses);
    }
    if (!shared) return;
    Ops::linear_forward(x, "encore::moe::shared_up", *b.shared_up, b.normalized, *b.shared_raised);
    activation.forward<T>(x, *b.shared_raised, *b.shared_activated);
    Ops::linear_forward(x, "encore::moe::shared_down", shared_down, *b.shared_activated, *b.shared_result);
  });
  segments.end();
}

template <class Space, class T, class G>
void append_expert_router_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                   const std::string& name, const ExpertBuffers& b,
                                   const ExpertGradients& gradients, BufferId residual) {
  using A = Accumulator<T>;
  using Ops = Operations<Space, T>;
  const ExpertGeometry g = expert_geometry(builder);
  const std::int64_t tokens = g.tokens;
  const BufferId logits_gradient = builder.template add<T>(name + "/logits_gradient", {tokens, g.experts});
  std::optional<BufferId> jittered_gradient, shared_gradient;
  if (b.jittered)
    jittered_gradient = builder.template add<T>(name + "/jittered_gradient", {tokens, g.hidden});
  const bool shared = b.shared_up.has_value();
  if (shared)
    shared_gradient = builder.template add<T>(name + "/shared_activated_gradient", {tokens, g.shared_ffn});
  const BufferId norm_workspace = builder.template add<A>(
      name + "/norm_workspace", Ops::norm_workspace(b.norm, builder.stream_tokens(), g.hidden));

  std::vector<LinearGradient> weights{linear_gradient(builder, name + "/router_bias_workspace",
                                                      "encore::moe::router_wgrad", b.router,
                                                      b.jittered.value_or(b.normalized), logits_gradient)};
  if (shared) {
    weights.push_back(linear_gradient(builder, name + "/shared_down_bias_workspace",
                                      "encore::moe::shared_down_wgrad", *b.shared_down, *b.shared_activated,
                                      gradients.output));
    weights.push_back(linear_gradient(builder, name + "/shared_up_bias_workspace",
                                      "encore::moe::shared_up_wgrad", *b.shared_up, b.normalized,
                                      *b.shared_raised));
  }
  for (LinearGradient& weight : weights) weight.accumulate = builder.accumulates(weight.linear);
  const BufferId balance = builder.scalar("balance_loss"), z = builder.scalar("router_z_loss"),
                 epsilon = builder.scalar("router_jitter");
  const ExpertSettings settings = builder.shape.experts;
  const double factor = 1.0 / static_cast<double>(builder.shape.microbatches * builder.shard().layout.data());

  BlockSegments<Space> segments(builder.step.program,
                                place.segment(builder.prefix(place.microbatch), Module::moe_router));
  if (builder.is_in(RankGroup::tensor))
    segments.communicate("sum_weights", {}, buffers_of(gradients.weights), [=](Execution<Space>& x) {
      all_reduce<A>(x, RankGroup::tensor, "encore::moe::weights_gradient", gradients.weights);
    });
  std::vector<BufferId> reads = buffers_of(
      gradients.output, gradients.weights, b.normalized, b.jittered, b.logits, b.log_sum_exp, b.experts,
      b.live, b.tokens_of_expert, b.totals, b.router.weight.value, balance, z, epsilon, b.shared_activated);
  if (shared) append(reads, b.shared_up->weight.value);
  if (shared) append(reads, b.shared_down->weight.value);
  const std::vector<BufferId> writes = buffers_of(gradients.normalized, logits_gradient, jittered_gradient,
                                                  shared_gradient, b.shared_raised, weights);
  const DenseActivation activation = dense_activation(builder.model);
  const auto queue = [=, b = b](Execution<Space>& x) {
    const auto coefficient = [&](bool enters, BufferId id) {
      return enters ? x.template pointer<const double>(id) : nullptr;
    };
    kernels::router_backward<Space, T>(
        x.stream(), g.rules, x.template matrix<const A>(b.logits), x.template vector<const A>(b.log_sum_exp),
        x.template matrix<const std::int32_t>(b.experts), x.template vector<const std::int32_t>(b.live),
        x.template matrix<const A>(gradients.weights),
        x.template vector<const std::int32_t>(*b.tokens_of_expert),
        x.template vector<const double>(*b.totals), coefficient(settings.balance_loss, balance),
        coefficient(settings.z_loss, z), factor, x.template matrix<T>(logits_gradient));
    // Of the router's part, which all tensor ranks have alike, the sum over them has one.
    if (jittered_gradient && g.first_term) {
      Ops::linear_backward_input(x, "encore::moe::router_dgrad", b.router, logits_gradient,
                                 *jittered_gradient);
      kernels::router_jitter<Space, T>(x.stream(), x.template matrix<const T>(*jittered_gradient),
                                       x.template matrix<T>(*jittered_gradient),
                                       x.template pointer<const double>(epsilon),
                                       x.device().random().state("default"), b.jitter_segment);
      const auto sum = x.template matrix<T>(gradients.normalized);
      kernels::add<Space, T>(x.stream(), x.template matrix<const T>(gradients.normalized),
                             x.template matrix<const T>(*jittered_gradient), sum);
    } else if (g.first_term) {
      add_backward_input<Space, T>(x, "encore::moe::router_dgrad", b.router, logits_gradient,
                                   gradients.normalized);
    }
    Ops::template linear_backward_weight<G>(x, weights[0]);
    if (shared) {
      Ops::linear_backward_input(x, "encore::moe::shared_down_dgrad", *b.shared_down, gradients.output,
                                 *shared_gradient);
      Ops::template linear_backward_weight<G>(x, weights[1]);
      activation.backward<T>(x, *b.shared_raised, *shared_gradient);
      add_backward_input<Space, T>(x, "encore::moe::shared_up_dgrad", *b.shared_up, *b.shared_raised,
                                   gradients.normalized);
      Ops::template linear_backward_weight<G>(x, weights[2]);
    }
  };
  segments.compute("products", reads, writes, queue, lingering(builder, weights));
  const BufferId own_gradient =
      append_sum(builder, segments, "sum", name + "/own_normalized_gradient", gradients.normalized);
  append_norm_backward(builder, segments, b.norm, b.statistics, b.input, own_gradient, residual, true,
                       norm_workspace);
  segments.end();
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                  \
  template void append_expert_router(StackBuilder<SPACE, T, G>&, const ExpertPlace&, const std::string&, \
                                     ExpertBuffers&, bool);                                              \
  template void append_expert_router_backward(StackBuilder<SPACE, T, G>&, const ExpertPlace&,            \
                                              const std::string&, const ExpertBuffers&,                  \
                                              const ExpertGradients&, BufferId);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
