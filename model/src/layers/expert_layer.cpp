// SPDX-License-Identifier: Apache-2.0
#include "expert_segments.hpp"

#include <encore/backend/error.hpp>
#include <encore/kernels/live_tokens.hpp>

#include <cmath>

#include "dense_activation.hpp"

namespace encore::model {

std::int64_t expert_capacity(const ModelConfiguration& model, const ExpertSettings& settings,
                             std::int64_t tokens) {
  if (settings.capacity <= 0) return 0;
  const double share = static_cast<double>(tokens * model.topk) / static_cast<double>(model.experts);
  // No expert gets a token twice.
  return std::min(tokens, static_cast<std::int64_t>(std::ceil(settings.capacity * share)));
}

std::int64_t expert_rows(const ModelConfiguration& model, const ExpertSettings& settings, std::int64_t tokens,
                         std::int64_t ranks) {
  if (const std::int64_t capacity = expert_capacity(model, settings, tokens); capacity > 0)
    return model.experts * capacity;
  // A token chooses no expert twice.
  const std::int64_t most = tokens * std::min(model.topk, model.experts / ranks);
  const auto within_budget = [&](std::int64_t pairs) {
    return static_cast<std::int64_t>(std::ceil(settings.budget * static_cast<double>(pairs)));
  };
  if (settings.dispatch == ExpertDispatch::all_gather)
    return std::min(ranks * most, within_budget(ranks * tokens * model.topk));
  return ranks * std::min(most, within_budget(tokens * model.topk));
}

template <class Space, class T, class G>
ExpertGeometry expert_geometry(const StackBuilder<Space, T, G>& builder) {
  const ModelConfiguration& model = builder.model;
  const ModelConfiguration& local = builder.local;
  const std::int64_t tokens = builder.tokens();
  ExpertGeometry geometry{};
  geometry.tokens = tokens;
  geometry.hidden = model.hidden;
  geometry.experts = model.experts;
  geometry.ffn = local.expert_ffn;
  geometry.raised = raised_width(model, local.expert_ffn);
  geometry.shared_ffn = local.shared_ffn;
  geometry.shared_raised = raised_width(model, local.shared_ffn);
  geometry.exchanges = builder.is_in(RankGroup::expert);
  geometry.dispatch = builder.shape.experts.dispatch;
  geometry.ranks = builder.shard().layout.expert();
  geometry.local_experts = local.experts;
  geometry.first_local_expert = builder.shard().expert_rank() * local.experts;
  geometry.rows = expert_rows(model, builder.shape.experts, tokens, geometry.ranks);
  geometry.slots = geometry.rows / geometry.ranks;
  geometry.capacity = expert_capacity(model, builder.shape.experts, tokens);
  geometry.rules = {static_cast<kernels::RouterScore>(model.router_score),
                    model.topk,
                    model.router_renormalize,
                    model.router_groups,
                    model.router_topk_groups,
                    model.router_scale};
  geometry.inputs_first = model.family == "gpt_oss";
  geometry.first_term = builder.shard().place.tensor == 0;
  using Kind = kernels::ExpertActivationKind;
  switch (model.activation) {
    case Activation::swiglu: geometry.activation = {Kind::swiglu}; break;
    case Activation::swiglu_clamped: geometry.activation = {Kind::swiglu_clamped, model.swiglu_limit}; break;
    case Activation::relu_squared: geometry.activation = {Kind::relu_squared}; break;
    case Activation::gelu:
    case Activation::gelu_tanh:
      throw ConfigurationError(
          "model.activation of a model with experts must be swiglu, swiglu_clamped or relu_squared");
  }
  return geometry;
}

template <class Space, class T, class G>
void append_live_tokens(StackBuilder<Space, T, G>& builder, std::int64_t microbatch) {
  const BufferId labels = builder.step.program.outline()
                              .find_buffer("microbatch." + std::to_string(microbatch) + "/labels")
                              .value();
  const std::string name = builder.prefix(microbatch) + "embedding/live";
  const BufferId live = builder.template add<std::int32_t>(name, {builder.tokens()});
  builder.step.program.add_segment(
      {name, Module::embedding, Phase::forward, -1, static_cast<std::int32_t>(microbatch), buffers_of(labels),
       buffers_of(live)},
      [=](Execution<Space>& x) {
        kernels::live_tokens<Space>(x.stream(), x.template vector<const std::int32_t>(labels),
                                    x.template vector<std::int32_t>(live));
      });
}

template <class Space, class T, class G>
ExpertBuffers append_experts_forward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                     std::int64_t layer, BufferId input) {
  const std::string parameters = "layer." + std::to_string(layer) + "/moe";
  const std::string name = builder.prefix(microbatch) + parameters;
  const auto& outline = builder.step.program.outline();
  const auto bias = [&](const std::string& of) {
    return builder.layout.contains(parameters + of) ? std::optional(builder.parameter(parameters + of))
                                                    : std::nullopt;
  };
  ExpertBuffers b{};
  b.norm = builder.norm(parameters + "/norm");
  b.router = builder.linear(parameters + "/router");
  b.up = builder.parameter(parameters + "/up.weight");
  b.down = builder.parameter(parameters + "/down.weight");
  b.up_bias = bias("/up.bias");
  b.down_bias = bias("/down.bias");
  if (builder.model.shared_ffn > 0) {
    b.shared_up = builder.linear(parameters + "/shared_up");
    b.shared_down = builder.linear(parameters + "/shared_down");
  }
  if (builder.model.expert_bias) b.selection_bias = outline.find_buffer(parameters + "/selection_bias");
  b.live = outline.find_buffer(builder.prefix(microbatch) + "embedding/live").value();
  b.input = input;
  b.rows_needed = builder.training() ? outline.find_buffer(name + "/rows_needed").value()
                                     : builder.template add<std::int32_t>(name + "/rows_needed", {1});
  if (builder.jitters())
    b.jitter_segment = builder.random_segment(microbatch, layer, RandomPlace::router_jitter);
  b.dropout_segment = builder.random_segment(microbatch, layer, RandomPlace::experts_result);
  b.result = builder.template add<T>(name + "/result", {builder.stream_tokens(), builder.model.hidden});
  const ExpertPlace place{microbatch, layer, Phase::forward, "forward"};
  append_expert_router(builder, place, name, b, builder.training());
  append_expert_arrival(builder, place, name, b);
  append_expert_preprocess(builder, place, name, b);
  append_expert_products(builder, place, name, b, true);
  append_expert_return(builder, place, name, b);
  append_expert_combine(builder, place, name, b);
  return b;
}

template <class Space, class T, class G>
ExpertBuffers append_experts_recompute(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                       std::int64_t layer, const ExpertBuffers& forward, bool with_result) {
  const std::string name = builder.prefix(microbatch) + "layer." + std::to_string(layer) + "/moe/recompute";
  ExpertBuffers b = forward;
  b.rows_needed = builder.template add<std::int32_t>(name + "/rows_needed", {1});
  const ExpertPlace place{microbatch, layer, Phase::backward, "recompute"};
  append_expert_router(builder, place, name, b, false);
  append_expert_arrival(builder, place, name, b);
  append_expert_preprocess(builder, place, name, b);
  append_expert_products(builder, place, name, b, with_result);
  if (with_result) {
    append_expert_return(builder, place, name, b);
    b.result = builder.template add<T>(name + "/result", {builder.stream_tokens(), builder.model.hidden});
    append_expert_combine(builder, place, name, b);
  }
  return b;
}

template <class Space, class T, class G>
void append_experts_backward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch, std::int64_t layer,
                             const ExpertBuffers& b, BufferId residual) {
  const std::string name = builder.prefix(microbatch) + "layer." + std::to_string(layer) + "/moe";
  const std::int64_t tokens = builder.tokens(), hidden = builder.model.hidden;
  const ExpertPlace place{microbatch, layer, Phase::backward, "backward"};
  ExpertGradients gradients{
      {},
      builder.template add_expert_rows<T>(name + "/rows_gradient", {b.rows, hidden}),
      builder.template add<Accumulator<T>>(name + "/weights_gradient", {tokens, builder.model.topk}),
      builder.template add<T>(name + "/normalized_gradient", {tokens, hidden}),
      {},
      std::nullopt};
  gradients.arrived_weights = b.routing
                                  ? builder.template add<Accumulator<T>>(name + "/arrived_weights_gradient",
                                                                         {b.arrived.count, b.arrived.topk})
                                  : gradients.weights;
  if (b.slot_of)
    gradients.slots =
        builder.template add_expert_rows<T>(name + "/slots_gradient", {b.arrived.count, hidden});
  append_expert_combine_backward(builder, place, name, b, gradients, residual);
  append_expert_return_backward(builder, place, name, b, gradients);
  append_expert_products_backward(builder, place, name, b, gradients);
  append_expert_arrival_backward(builder, place, name, b, gradients);
  append_expert_preprocess_backward(builder, place, b, gradients);
  append_expert_router_backward(builder, place, name, b, gradients, residual);
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                   \
  template ExpertGeometry expert_geometry(const StackBuilder<SPACE, T, G>&);                              \
  template void append_live_tokens(StackBuilder<SPACE, T, G>&, std::int64_t);                             \
  template ExpertBuffers append_experts_forward(StackBuilder<SPACE, T, G>&, std::int64_t, std::int64_t,   \
                                                BufferId);                                                \
  template ExpertBuffers append_experts_recompute(StackBuilder<SPACE, T, G>&, std::int64_t, std::int64_t, \
                                                  const ExpertBuffers&, bool);                            \
  template void append_experts_backward(StackBuilder<SPACE, T, G>&, std::int64_t, std::int64_t,           \
                                        const ExpertBuffers&, BufferId);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
