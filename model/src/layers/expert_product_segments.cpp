// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/expert_bias.hpp>
#include <encore/kernels/expert_exchange.hpp>

#include "expert_segments.hpp"

namespace encore::model {

namespace {

/// The rows of each expert, for products.
template <class Space>
backend::RowGroups groups_of(Execution<Space>& x, const ExpertBuffers& b, const ExpertGeometry& g) {
  return {x.template pointer<const std::int32_t>(b.begins), x.template pointer<const std::int32_t>(b.ends),
          g.local_experts, g.rows};
}

/// result = input * weight of each row's expert, as forward (towards outputs) or back (towards inputs).
template <class Space, class T>
void expert_product(Execution<Space>& x, const char* label, const ExpertBuffers& b, const ExpertGeometry& g,
                    BufferId input, BufferId weight, bool forward, BufferId result,
                    const std::optional<BufferId>& bias = std::nullopt) {
  using enum backend::Transpose;
  x.device().grouped_blas().template multiply_rows<T>(
      x.stream(), label, groups_of(x, b, g),
      backend::operand<const T, Space>(x.template matrix<const T>(input)),
      forward != g.inputs_first ? yes : no, x.template pointer<const T>(weight),
      backend::operand<T, Space>(x.template matrix<T>(result)),
      bias ? x.template pointer<const T>(*bias) : nullptr);
}

template <class Space, class T, class G>
void expert_weight_gradient(Execution<Space>& x, const char* label, const ExpertBuffers& b,
                            const ExpertGeometry& g, BufferId input, BufferId output_gradient,
                            BufferId gradient, bool accumulate) {
  const auto result = x.template vector<G>(gradient);
  const backend::BranchScope branch(x.stream(), Operations<Space, T>::beside_unless_full(x, result.size()));
  const auto first = g.inputs_first ? input : output_gradient;
  const auto second = g.inputs_first ? output_gradient : input;
  x.device().grouped_blas().template multiply_weights<T, G>(
      x.stream(), label, groups_of(x, b, g),
      backend::operand<const T, Space>(x.template matrix<const T>(first)),
      backend::operand<const T, Space>(x.template matrix<const T>(second)), result.data(), accumulate);
}

}  // namespace

template <class Space, class T, class G>
void append_expert_preprocess(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                              const std::string& name, ExpertBuffers& b) {
  using A = Accumulator<T>;
  const ExpertGeometry g = expert_geometry(builder);
  const ExpertTokens& arrived = b.arrived;
  // Of choices that were sent all find rows; only their slots may have been too few, or their experts' capacity.
  const bool counts = !b.slot_of && !(b.routing && g.capacity > 0);
  const DispatchBuffers rows = add_dispatch(builder, name, arrived.count, arrived.topk, g.local_experts,
                                            g.rows, counts ? std::optional(b.rows_needed) : std::nullopt);
  b.rows = g.rows;
  b.begins = rows.begins;
  b.ends = rows.ends;
  b.source = rows.source;
  b.row_of = rows.row_of;
  // What is dropped for lack of capacity was not sent.
  const std::int64_t capacity = b.routing ? 0 : g.capacity;
  const auto routing = b.routing;
  Segment segment = place.segment(builder.prefix(place.microbatch),
                                  b.routing ? Module::moe_experts : Module::moe_preprocess);
  if (routing) segment.name += "/order";
  segment.writes = rows.all();
  if (routing) {
    append(segment.reads, *routing);
    append(segment.writes, arrived.experts);
    append(segment.writes, arrived.weights);
  } else {
    append(segment.reads, arrived.experts);
  }
  builder.step.program.add_segment(std::move(segment), [=](Execution<Space>& x) {
    if (routing) {
      const auto message = x.template matrix<const A>(*routing);
      kernels::unpack_routing<Space, A>(x.stream(), message, g.first_local_expert, g.local_experts,
                                        x.template matrix<std::int32_t>(arrived.experts),
                                        x.template matrix<A>(arrived.weights));
    }
    rows.fill(x, arrived.experts, capacity);
  });
}

template <class Space, class T, class G>
void append_expert_products(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                            const std::string& name, ExpertBuffers& b, bool with_outputs) {
  using A = Accumulator<T>;
  const ExpertGeometry g = expert_geometry(builder);
  const BufferId permuted = builder.template add_expert_rows<T>(name + "/permuted", {g.rows, g.hidden});
  b.raised = builder.template add_expert_rows<T>(name + "/raised", {g.rows, g.raised});
  b.activated = builder.template add_expert_rows<T>(name + "/activated", {g.rows, g.ffn});
  if (with_outputs) b.outputs = builder.template add_expert_rows<T>(name + "/outputs", {g.rows, g.hidden});
  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_experts);
  segment.reads = buffers_of(b.arrived.values, b.begins, b.ends, b.source, b.row_of, b.arrived.weights,
                             b.arrived.experts, b.up.value, value_of(b.up_bias));
  segment.writes = buffers_of(permuted, b.raised, b.activated);
  if (with_outputs) {
    append(segment.reads, b.down.value);
    append(segment.reads, value_of(b.down_bias));
    append(segment.writes, b.outputs);
  }
  builder.step.program.add_segment(std::move(segment), [=](Execution<Space>& x) {
    const auto source = x.template vector<const std::int32_t>(b.source);
    const auto weights = x.template matrix<const A>(b.arrived.weights);
    kernels::gather_rows<Space, T>(x.stream(), x.template matrix<const T>(b.arrived.values),
                                   x.template matrix<const std::int32_t>(b.row_of),
                                   x.template matrix<T>(permuted));
    expert_product<Space, T>(x, "encore::moe::up", b, g, permuted, b.up.value, true, b.raised,
                             value_of(b.up_bias));
    kernels::expert_activation_forward<Space, T>(x.stream(), g.activation,
                                                 x.template matrix<const T>(b.raised), source, weights,
                                                 x.template matrix<T>(b.activated));
    if (!with_outputs) return;
    expert_product<Space, T>(x, "encore::moe::down", b, g, b.activated, b.down.value, true, b.outputs);
    if (b.down_bias && g.first_term)
      kernels::expert_bias_forward<Space, T>(
          x.stream(), x.template matrix<const T>(b.down_bias->value), source, weights,
          x.template matrix<const std::int32_t>(b.arrived.experts), x.template matrix<T>(b.outputs));
  });
}

template <class Space, class T, class G>
void append_expert_products_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                     const std::string& name, const ExpertBuffers& b,
                                     const ExpertGradients& gradients) {
  using A = Accumulator<T>;
  const ExpertGeometry g = expert_geometry(builder);
  const BufferId activated_gradient =
      builder.template add_expert_rows<T>(name + "/activated_gradient", {g.rows, g.ffn});
  // Gathered once more instead of kept from forward to backward.
  const BufferId permuted = builder.template add_expert_rows<T>(name + "/permuted_again", {g.rows, g.hidden});
  std::optional<BufferId> bias_workspace;
  if (b.up_bias || b.down_bias)
    bias_workspace = builder.template add<A>(
        name + "/expert_bias_workspace",
        {kernels::expert_bias_workspace_rows(g.rows, g.local_experts), std::max(g.raised, g.hidden)});
  const bool accumulate = builder.accumulates(b.up);
  builder.accumulates(b.down);
  for (const auto& bias : {b.up_bias, b.down_bias})
    if (bias) builder.accumulates(*bias);
  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_experts);
  segment.reads =
      buffers_of(b.arrived.values, b.activated, b.begins, b.ends, b.source, b.row_of, b.arrived.weights,
                 b.arrived.experts, b.up.value, b.down.value, value_of(b.down_bias));
  segment.writes = buffers_of(gradients.rows, gradients.arrived_weights, activated_gradient, permuted,
                              b.raised, b.up.gradient, b.down.gradient, gradient_of(b.up_bias),
                              gradient_of(b.down_bias), bias_workspace);
  builder.step.program.add_segment(std::move(segment), [=](Execution<Space>& x) {
    const auto source = x.template vector<const std::int32_t>(b.source);
    const auto weights = x.template matrix<const A>(b.arrived.weights);
    const auto experts = x.template matrix<const std::int32_t>(b.arrived.experts);
    const auto weights_gradient = x.template matrix<A>(gradients.arrived_weights);
    const auto bias_gradient = [&](const ParameterBuffers& bias, BufferId from, bool weighted) {
      const auto gradient = x.template matrix<const T>(from);
      kernels::expert_bias_backward<Space, T, G>(
          x.stream(), gradient, x.template vector<const std::int32_t>(b.begins),
          x.template vector<const std::int32_t>(b.ends), source,
          weighted ? weights : backend::Matrix<const A, Space>(), x.template matrix<G>(*bias.gradient),
          backend::Matrix<A, Space>(
              x.template pointer<A>(*bias_workspace),
              static_cast<std::size_t>(kernels::expert_bias_workspace_rows(g.rows, g.local_experts)),
              gradient.extent(1)),
          accumulate);
    };
    {
      const backend::BesideScope<Space> beside(x.stream());
      kernels::gather_rows<Space, T>(x.stream(), x.template matrix<const T>(b.arrived.values),
                                     x.template matrix<const std::int32_t>(b.row_of),
                                     x.template matrix<T>(permuted));
    }
    expert_product<Space, T>(x, "encore::moe::down_dgrad", b, g, gradients.rows, b.down.value, false,
                             activated_gradient);
    expert_weight_gradient<Space, T, G>(x, "encore::moe::down_wgrad", b, g, b.activated, gradients.rows,
                                        *b.down.gradient, accumulate);
    kernels::expert_activation_backward<Space, T>(x.stream(), g.activation,
                                                  x.template matrix<const T>(b.raised),
                                                  x.template matrix<const T>(activated_gradient), source,
                                                  x.template matrix<const std::int32_t>(b.row_of), weights,
                                                  x.template matrix<T>(b.raised), weights_gradient);
    if (b.down_bias) {
      bias_gradient(*b.down_bias, gradients.rows, true);
      if (g.first_term)
        kernels::expert_bias_weight_gradient<Space, T>(x.stream(), x.template matrix<const T>(gradients.rows),
                                                       x.template matrix<const T>(b.down_bias->value), source,
                                                       experts, weights_gradient);
    }
    if (b.up_bias) bias_gradient(*b.up_bias, b.raised, false);
    expert_weight_gradient<Space, T, G>(x, "encore::moe::up_wgrad", b, g, permuted, b.raised, *b.up.gradient,
                                        accumulate);
    // From here on these are the gradients of the experts' inputs.
    expert_product<Space, T>(x, "encore::moe::up_dgrad", b, g, b.raised, b.up.value, false, gradients.rows);
  });
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                      \
  template void append_expert_preprocess(StackBuilder<SPACE, T, G>&, const ExpertPlace&, const std::string&, \
                                         ExpertBuffers&);                                                    \
  template void append_expert_products(StackBuilder<SPACE, T, G>&, const ExpertPlace&, const std::string&,   \
                                       ExpertBuffers&, bool);                                                \
  template void append_expert_products_backward(StackBuilder<SPACE, T, G>&, const ExpertPlace&,              \
                                                const std::string&, const ExpertBuffers&,                    \
                                                const ExpertGradients&);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
