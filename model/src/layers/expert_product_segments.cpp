// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/combine.hpp>
#include <encore/kernels/dropout.hpp>
#include <encore/kernels/expert_bias.hpp>

#include "expert_segments.hpp"

namespace encore::model {

namespace {

/// The rows of each expert, for products.
template <class Space>
backend::RowGroups groups_of(Execution<Space>& x, const ExpertBuffers& b, const ExpertGeometry& g) {
  return {x.template pointer<const std::int32_t>(b.begins), x.template pointer<const std::int32_t>(b.ends),
          g.experts, g.rows};
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
  const ExpertGeometry g = expert_geometry(builder);
  const auto add = [&](const char* suffix, std::vector<std::int64_t> extents) {
    return builder.template add<std::int32_t>(name + suffix, std::move(extents));
  };
  b.rows = g.rows;
  b.begins = add("/begins", {g.experts});
  b.ends = add("/ends", {g.experts});
  b.source = add("/source", {g.rows});
  b.row_of = add("/row_of", {g.tokens, g.rules.topk});
  const BufferId workspace =
      add("/dispatch_workspace", {kernels::dispatch_workspace_rows(g.tokens, g.rules.topk), g.experts});
  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_preprocess);
  segment.reads = buffers_of(b.experts);
  segment.writes = buffers_of(b.begins, b.ends, b.source, b.row_of, b.rows_needed, workspace);
  builder.step.program.add_segment(std::move(segment), [=](Execution<Space>& x) {
    kernels::dispatch<Space>(x.stream(), x.template matrix<const std::int32_t>(b.experts), g.capacity,
                             expert_rows_of(x, b), x.template matrix<std::int32_t>(workspace));
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
  segment.reads = buffers_of(b.normalized, b.begins, b.ends, b.source, b.row_of, b.weights, b.experts,
                             b.up.value, value_of(b.up_bias));
  segment.writes = buffers_of(permuted, b.raised, b.activated);
  if (with_outputs) {
    append(segment.reads, b.down.value);
    append(segment.reads, value_of(b.down_bias));
    append(segment.writes, b.outputs);
  }
  builder.step.program.add_segment(std::move(segment), [=](Execution<Space>& x) {
    const auto source = x.template vector<const std::int32_t>(b.source);
    const auto weights = x.template matrix<const A>(b.weights);
    kernels::gather_rows<Space, T>(x.stream(), x.template matrix<const T>(b.normalized),
                                   x.template matrix<const std::int32_t>(b.row_of),
                                   x.template matrix<T>(permuted));
    expert_product<Space, T>(x, "encore::moe::up", b, g, permuted, b.up.value, true, b.raised,
                             value_of(b.up_bias));
    kernels::expert_activation_forward<Space, T>(x.stream(), g.activation,
                                                 x.template matrix<const T>(b.raised), source, weights,
                                                 x.template matrix<T>(b.activated));
    if (!with_outputs) return;
    expert_product<Space, T>(x, "encore::moe::down", b, g, b.activated, b.down.value, true, b.outputs);
    if (b.down_bias)
      kernels::expert_bias_forward<Space, T>(
          x.stream(), x.template matrix<const T>(b.down_bias->value), source, weights,
          x.template matrix<const std::int32_t>(b.experts), x.template matrix<T>(b.outputs));
  });
}

template <class Space, class T, class G>
void append_expert_combine(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                           const std::string& name, const ExpertBuffers& b) {
  const ExpertGeometry g = expert_geometry(builder);
  std::optional<BufferId> undropped;
  if (builder.drops()) undropped = builder.template add<T>(name + "/undropped", {g.tokens, g.hidden});
  const BufferId probability = builder.scalar("dropout");
  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_combine);
  segment.reads = buffers_of(b.input, b.outputs, b.row_of, b.shared_result, probability);
  segment.writes = buffers_of(b.result, undropped);
  builder.step.program.add_segment(std::move(segment), [=](Execution<Space>& x) {
    const auto input = x.template matrix<const T>(b.input);
    using Inputs = backend::Matrix<const T, Space>;
    const auto shared = b.shared_result ? x.template matrix<const T>(*b.shared_result) : Inputs();
    kernels::combine_forward<Space, T>(
        x.stream(), x.template matrix<const T>(b.outputs), x.template matrix<const std::int32_t>(b.row_of),
        undropped ? Inputs() : input, shared, x.template matrix<T>(undropped.value_or(b.result)));
    if (undropped)
      kernels::dropout_forward<Space, T>(x.stream(), x.template matrix<const T>(*undropped), input,
                                         x.template matrix<T>(b.result),
                                         x.template pointer<const double>(probability),
                                         x.device().random().state("default"), b.dropout_segment);
  });
}

template <class Space, class T, class G>
void append_expert_combine_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                    const ExpertBuffers& b, const ExpertGradients& gradients,
                                    BufferId residual) {
  using Ops = Operations<Space, T>;
  const BufferId probability = builder.scalar("dropout");
  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_combine);
  segment.reads = buffers_of(residual, b.row_of, probability);
  segment.writes = buffers_of(gradients.output.dropped, gradients.output.kept, gradients.rows);
  builder.step.program.add_segment(std::move(segment), [=](Execution<Space>& x) {
    Ops::fill_branch_gradient(x, "encore::moe::output_gradient", gradients.output, residual, probability,
                              b.dropout_segment);
    kernels::gather_rows<Space, T>(x.stream(), x.template matrix<const T>(gradients.output.value),
                                   x.template matrix<const std::int32_t>(b.row_of),
                                   x.template matrix<T>(gradients.rows));
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
        {kernels::expert_bias_workspace_rows(g.rows, g.experts), std::max(g.raised, g.hidden)});
  const bool accumulate = builder.accumulates(b.up);
  builder.accumulates(b.down);
  for (const auto& bias : {b.up_bias, b.down_bias})
    if (bias) builder.accumulates(*bias);
  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_experts);
  segment.reads = buffers_of(b.normalized, b.activated, b.begins, b.ends, b.source, b.row_of, b.weights,
                             b.experts, b.up.value, b.down.value, value_of(b.down_bias));
  segment.writes =
      buffers_of(gradients.rows, gradients.weights, activated_gradient, permuted, b.raised, b.up.gradient,
                 b.down.gradient, gradient_of(b.up_bias), gradient_of(b.down_bias), bias_workspace);
  builder.step.program.add_segment(std::move(segment), [=](Execution<Space>& x) {
    const auto source = x.template vector<const std::int32_t>(b.source);
    const auto weights = x.template matrix<const A>(b.weights);
    const auto experts = x.template matrix<const std::int32_t>(b.experts);
    const auto weights_gradient = x.template matrix<A>(gradients.weights);
    const auto bias_gradient = [&](const ParameterBuffers& bias, BufferId from, bool weighted) {
      const auto gradient = x.template matrix<const T>(from);
      kernels::expert_bias_backward<Space, T, G>(
          x.stream(), gradient, x.template vector<const std::int32_t>(b.begins),
          x.template vector<const std::int32_t>(b.ends), source,
          weighted ? weights : backend::Matrix<const A, Space>(), x.template matrix<G>(*bias.gradient),
          backend::Matrix<A, Space>(
              x.template pointer<A>(*bias_workspace),
              static_cast<std::size_t>(kernels::expert_bias_workspace_rows(g.rows, g.experts)),
              gradient.extent(1)),
          accumulate);
    };
    {
      const backend::BesideScope<Space> beside(x.stream());
      kernels::gather_rows<Space, T>(x.stream(), x.template matrix<const T>(b.normalized),
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

template <class Space, class T, class G>
void append_expert_preprocess_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                       const ExpertBuffers& b, const ExpertGradients& gradients) {
  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_preprocess);
  segment.reads = buffers_of(gradients.rows, b.row_of);
  segment.writes = buffers_of(gradients.normalized);
  builder.step.program.add_segment(std::move(segment), [=](Execution<Space>& x) {
    kernels::gather_rows_backward<Space, T>(x.stream(), x.template matrix<const T>(gradients.rows),
                                            x.template matrix<const std::int32_t>(b.row_of),
                                            x.template matrix<T>(gradients.normalized), false);
  });
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                      \
  template void append_expert_preprocess(StackBuilder<SPACE, T, G>&, const ExpertPlace&, const std::string&, \
                                         ExpertBuffers&);                                                    \
  template void append_expert_products(StackBuilder<SPACE, T, G>&, const ExpertPlace&, const std::string&,   \
                                       ExpertBuffers&, bool);                                                \
  template void append_expert_combine(StackBuilder<SPACE, T, G>&, const ExpertPlace&, const std::string&,    \
                                      const ExpertBuffers&);                                                 \
  template void append_expert_combine_backward(StackBuilder<SPACE, T, G>&, const ExpertPlace&,               \
                                               const ExpertBuffers&, const ExpertGradients&, BufferId);      \
  template void append_expert_products_backward(StackBuilder<SPACE, T, G>&, const ExpertPlace&,              \
                                                const std::string&, const ExpertBuffers&,                    \
                                                const ExpertGradients&);                                     \
  template void append_expert_preprocess_backward(StackBuilder<SPACE, T, G>&, const ExpertPlace&,            \
                                                  const ExpertBuffers&, const ExpertGradients&);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
