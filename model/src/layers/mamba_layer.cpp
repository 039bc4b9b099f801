// SPDX-License-Identifier: Apache-2.0
#include "mamba_geometry.hpp"
#include "tensor_parallel.hpp"

#include <encore/kernels/causal_convolution.hpp>
#include <encore/kernels/gated_normalization.hpp>

namespace encore::model {

namespace {

/// The kernels of a block between its projections, on its buffers.
template <class Space, class T>
struct MambaKernels {
  using A = Accumulator<T>;

  Execution<Space>& x;
  const MambaGeometry& geometry;
  const MambaBuffers& b;

  backend::Vector<const T, Space> weights(const ParameterBuffers& parameter) const {
    return x.template vector<const T>(parameter.value);
  }
  backend::Vector<const T, Space> convolution_bias() const {
    return b.convolution_bias ? weights(*b.convolution_bias) : backend::Vector<const T, Space>();
  }
  kernels::Columns<const T> projected_mixed() const {
    return geometry.mixed_of<Space>(x.template matrix<const T>(b.projected));
  }
  kernels::StateSpaceInputs<Space, T> inputs() const {
    const auto mixed = x.template matrix<const T>(b.mixed);
    const std::int64_t inner = geometry.inner(), state = geometry.groups_state();
    return {kernels::columns_of<const T, Space>(mixed, 0, inner),
            kernels::columns_of<const T, Space>(mixed, inner, state),
            kernels::columns_of<const T, Space>(mixed, inner + state, state),
            geometry.step_of<Space>(x.template matrix<const T>(b.projected)),
            weights(b.step_bias),
            weights(b.decay_log),
            weights(b.skip)};
  }
  /// Declared as read in backward, where the kernels only read it.
  kernels::StateSpaceSaved<Space, A> saved() const {
    return {writable(b.steps), writable(b.decays), writable(b.states)};
  }
  kernels::Columns<T> columns(BufferId id) const {
    return kernels::columns_of<T, Space>(x.template matrix<T>(id));
  }
  kernels::Columns<const T> const_columns(BufferId id) const {
    return kernels::columns_of<const T, Space>(x.template matrix<const T>(id));
  }

  void forward(BufferId workspace) const {
    kernels::causal_convolution_forward<Space, T>(x.stream(), geometry.scan.batch, projected_mixed(),
                                                  x.template matrix<const T>(b.convolution_weight.value),
                                                  convolution_bias(), columns(b.mixed));
    kernels::state_space_forward<Space, T>(x.stream(), geometry.scan, inputs(), columns(b.scanned), saved(),
                                           x.template vector<A>(workspace));
    kernels::gated_rms_norm_forward<Space, T>(
        x.stream(), const_columns(b.scanned),
        geometry.gate_of<Space>(x.template matrix<const T>(b.projected)), weights(b.gate_norm),
        columns(b.gated), x.template matrix<A>(b.gate_inverse), geometry.epsilon);
  }

 private:
  backend::Matrix<A, Space> writable(BufferId id) const {
    const auto matrix = x.template matrix<const A>(id);
    return backend::Matrix<A, Space>(const_cast<A*>(matrix.data()), matrix.extent(0), matrix.extent(1));
  }
};

/// Adds what a block computes from its input before the output projection.
template <class Space, class T, class G>
void add_temporaries(StackBuilder<Space, T, G>& builder, const std::string& name, MambaBuffers& b) {
  using A = Accumulator<T>;
  const MambaGeometry geometry = mamba_geometry_of(builder);
  const kernels::StateSpaceShape& scan = geometry.scan;
  const std::int64_t tokens = builder.tokens();
  b.normalized =
      builder.template add<T>(name + "/normalized", {builder.stream_tokens(), builder.model.hidden});
  b.statistics = builder.statistics(name + "/norm");
  b.projected = builder.template add<T>(name + "/projected", {tokens, geometry.projected()});
  b.mixed = builder.template add<T>(name + "/mixed", {tokens, geometry.mixed()});
  b.steps = builder.template add<A>(name + "/steps", {scan.heads, tokens});
  b.decays = builder.template add<A>(name + "/decays", {scan.heads, tokens});
  b.states = builder.template add<A>(name + "/states",
                                     {scan.batch * scan.chunks() * scan.heads, scan.head_dim * scan.state});
  b.scanned = builder.template add<T>(name + "/scanned", {tokens, geometry.inner()});
  b.gated = builder.template add<T>(name + "/gated", {tokens, geometry.inner()});
  b.gate_inverse = builder.template add<A>(name + "/gate_norm/inverse", {tokens, geometry.norm_groups});
}

/// Appends what computes the temporaries, and the result where there is to be one. Returns the normalized input of all
/// tokens.
template <class Space, class T, class G>
BufferId append_computation(StackBuilder<Space, T, G>& builder, Segment place, const std::string& name,
                            const MambaBuffers& b, std::optional<BufferId> result) {
  using Ops = Operations<Space, T>;
  const MambaGeometry geometry = mamba_geometry_of(builder);
  BlockSegments<Space> segments(builder.step.program, std::move(place));
  std::optional<BranchTerm> term;
  if (result) term = branch_term(builder, name, b.input, *result);
  const BufferId workspace = builder.template add<Accumulator<T>>(
      name + "/scan_workspace", {kernels::state_space_forward_workspace(geometry.scan)});
  append_norm(builder, segments, b.norm, b.statistics, b.input, b.normalized);
  const BufferId normalized = append_gather(builder, segments, "gather", name + "/gathered", b.normalized);
  std::vector<BufferId> reads = buffers_of(
      normalized, b.in.weight.value, value_of(b.in.bias), b.convolution_weight.value,
      value_of(b.convolution_bias), b.step_bias.value, b.decay_log.value, b.skip.value, b.gate_norm.value);
  std::vector<BufferId> writes = buffers_of(b.projected, b.mixed, b.steps, b.decays, b.states, b.scanned,
                                            b.gated, b.gate_inverse, workspace);
  if (term) append(reads, reads_of(b.out, *term));
  if (term) append(writes, term->value);
  segments.compute("products", reads, writes, [=](Execution<Space>& x) {
    Ops::linear_forward(x, "encore::mamba::in", b.in, normalized, b.projected);
    MambaKernels<Space, T>{x, geometry, b}.forward(workspace);
    if (term) linear_term<T>(x, "encore::mamba::out", b.out, b.gated, *term);
  });
  if (term) append_branch(builder, segments, *term, b.input, *result, b.dropout_segment);
  segments.end();
  return normalized;
}

/// What a backward pass has beside the block's own buffers.
struct BackwardBuffers {
  BufferId gated_gradient;  ///< of the gated norm's output, then of the scan's
  BufferId mixed_gradient;  ///< of x, B and C behind the convolution
  BufferId projected_gradient;
  BufferId normalized_gradient;
  BufferId gate_workspace, scan_workspace, convolution_workspace, norm_workspace;
};

/// Whether the gradients of the parameters between the projections are added to.
struct Accumulation {
  bool gate_norm, scan, convolution;
};

template <class Space, class T, class G>
void run_backward(const MambaKernels<Space, T>& kernel, const BackwardBuffers& g,
                  const Accumulation& accumulate) {
  using A = Accumulator<T>;
  const auto& [x, geometry, b] = kernel;
  const auto gradient = [&](const ParameterBuffers& parameter) {
    return x.template vector<G>(*parameter.gradient);
  };
  const auto projected_gradient = x.template matrix<T>(g.projected_gradient);
  const auto mixed_gradient = x.template matrix<T>(g.mixed_gradient);
  const std::int64_t inner = geometry.inner(), state = geometry.groups_state();
  kernels::gated_rms_norm_backward<Space, T, G>(
      x.stream(), kernel.const_columns(b.scanned),
      geometry.template gate_of<Space>(x.template matrix<const T>(b.projected)), kernel.weights(b.gate_norm),
      x.template matrix<const A>(b.gate_inverse), kernel.const_columns(g.gated_gradient),
      kernel.columns(g.gated_gradient), geometry.template gate_of<Space>(projected_gradient),
      gradient(b.gate_norm), x.template matrix<A>(g.gate_workspace), accumulate.gate_norm);
  const kernels::StateSpaceGradients<Space, T, G> scan{
      kernels::columns_of<T, Space>(mixed_gradient, 0, inner),
      kernels::columns_of<T, Space>(mixed_gradient, inner, state),
      kernels::columns_of<T, Space>(mixed_gradient, inner + state, state),
      geometry.template step_of<Space>(projected_gradient),
      gradient(b.step_bias),
      gradient(b.decay_log),
      gradient(b.skip),
      accumulate.scan};
  kernels::state_space_backward<Space, T, G>(x.stream(), geometry.scan, kernel.inputs(),
                                             kernel.const_columns(g.gated_gradient), kernel.saved(), scan,
                                             x.template vector<A>(g.scan_workspace));
  kernels::causal_convolution_backward<Space, T, G>(
      x.stream(), geometry.scan.batch, kernel.projected_mixed(),
      x.template matrix<const T>(b.convolution_weight.value), kernel.convolution_bias(),
      kernel.const_columns(g.mixed_gradient), geometry.template mixed_of<Space>(projected_gradient),
      x.template matrix<G>(*b.convolution_weight.gradient),
      b.convolution_bias ? gradient(*b.convolution_bias) : backend::Vector<G, Space>(),
      x.template matrix<A>(g.convolution_workspace), accumulate.convolution);
}

template <class Space, class T, class G>
BackwardBuffers add_backward_buffers(StackBuilder<Space, T, G>& builder, const std::string& name,
                                     const MambaBuffers& b) {
  using A = Accumulator<T>;
  const MambaGeometry geometry = mamba_geometry_of(builder);
  const std::int64_t tokens = builder.tokens(), hidden = builder.model.hidden;
  const std::int64_t taps = builder.model.mamba_convolution;
  const auto temporary = [&](const std::string& suffix, std::int64_t columns) {
    return builder.template add<T>(name + suffix, {tokens, columns});
  };
  const auto workspace = [&](const std::string& suffix, std::vector<std::int64_t> extents) {
    return builder.template add<A>(name + suffix, std::move(extents));
  };
  const std::int64_t convolution_rows =
      kernels::causal_convolution_workspace_rows(geometry.scan.batch, geometry.scan.tokens);
  return {
      temporary("/gated_gradient", geometry.inner()),
      temporary("/mixed_gradient", geometry.mixed()),
      temporary("/projected_gradient", geometry.projected()),
      temporary("/normalized_gradient", hidden),
      workspace("/gate_norm_workspace", {kernels::gated_rms_norm_workspace_rows(tokens), geometry.inner()}),
      workspace("/scan_gradient_workspace", {kernels::state_space_backward_workspace(geometry.scan)}),
      workspace("/convolution_workspace", {convolution_rows, geometry.mixed() * (taps + 1)}),
      workspace("/norm_workspace",
                Operations<Space, T>::norm_workspace(b.norm, builder.stream_tokens(), hidden))};
}

}  // namespace

template <class Space, class T, class G>
MambaBuffers append_mamba_forward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                  std::int64_t layer, BufferId input) {
  const std::string parameters = "layer." + std::to_string(layer) + "/mamba";
  const std::string name = builder.prefix(microbatch) + parameters;
  MambaBuffers b{};
  b.norm = builder.norm(parameters + "/norm");
  b.in = builder.linear(parameters + "/in");
  b.out = builder.linear(parameters + "/out");
  b.convolution_weight = builder.parameter(parameters + "/convolution.weight");
  if (builder.model.mamba_convolution_bias)
    b.convolution_bias = builder.parameter(parameters + "/convolution.bias");
  b.step_bias = builder.parameter(parameters + "/step_bias");
  b.decay_log = builder.parameter(parameters + "/decay_log");
  b.skip = builder.parameter(parameters + "/skip");
  b.gate_norm = builder.parameter(parameters + "/gate_norm.weight");
  b.input = input;
  b.result = builder.template add<T>(name + "/result", {builder.stream_tokens(), builder.model.hidden});
  b.dropout_segment = builder.random_segment(microbatch, layer, RandomPlace::mamba_result);
  add_temporaries(builder, name, b);
  append_computation(builder,
                     segment_of_layer(name + "/forward", Module::mamba, Phase::forward, layer, microbatch),
                     name, b, b.result);
  return b;
}

template <class Space, class T, class G>
MambaBuffers append_mamba_recompute(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                    std::int64_t layer, const MambaBuffers& forward, bool with_result) {
  const std::string name = builder.prefix(microbatch) + "layer." + std::to_string(layer) + "/mamba/recompute";
  MambaBuffers b = forward;
  if (with_result)
    b.result = builder.template add<T>(name + "/result", {builder.stream_tokens(), builder.model.hidden});
  add_temporaries(builder, name, b);
  b.gathered =
      append_computation(builder, segment_of_layer(name, Module::mamba, Phase::backward, layer, microbatch),
                         name, b, with_result ? std::optional(b.result) : std::nullopt);
  return b;
}

template <class Space, class T, class G>
std::vector<LinearGradient> append_mamba_backward(StackBuilder<Space, T, G>& builder, std::int64_t microbatch,
                                                  std::int64_t layer, const MambaBuffers& b,
                                                  BufferId residual) {
  using Ops = Operations<Space, T>;
  const std::string name = builder.prefix(microbatch) + "layer." + std::to_string(layer) + "/mamba";
  const MambaGeometry geometry = mamba_geometry_of(builder);
  const bool delayed = builder.shape.delay_weight_gradients;
  BlockSegments<Space> segments(builder.step.program, segment_of_layer(name + "/backward", Module::mamba,
                                                                       Phase::backward, layer, microbatch));
  const BufferId output_gradient = append_branch_gradient(
      builder, segments, name, "encore::mamba::output_gradient", residual, b.dropout_segment);
  const BufferId normalized = gathered_input(builder, segments, name, b);
  const BackwardBuffers g = add_backward_buffers(builder, name, b);
  std::vector<LinearGradient> weights{
      linear_gradient(builder, name + "/out_bias_workspace", "encore::mamba::out_wgrad", b.out, b.gated,
                      output_gradient),
      linear_gradient(builder, name + "/in_bias_workspace", "encore::mamba::in_wgrad", b.in, normalized,
                      g.projected_gradient)};
  if (!delayed)
    for (LinearGradient& gradient : weights) gradient.accumulate = builder.accumulates(gradient.linear);
  if (b.convolution_bias) builder.accumulates(*b.convolution_bias);
  builder.accumulates(b.decay_log);
  builder.accumulates(b.skip);
  const Accumulation accumulate{builder.accumulates(b.gate_norm), builder.accumulates(b.step_bias),
                                builder.accumulates(b.convolution_weight)};
  std::vector<BufferId> writes = buffers_of(
      g.gated_gradient, g.mixed_gradient, g.projected_gradient, g.normalized_gradient, g.gate_workspace,
      g.scan_workspace, g.convolution_workspace, b.gate_norm.gradient, b.step_bias.gradient,
      b.decay_log.gradient, b.skip.gradient, b.convolution_weight.gradient, gradient_of(b.convolution_bias));
  // Behind the sum over ranks, for which the rest of the pass waits.
  const bool behind = builder.is_in(RankGroup::tensor);
  if (!delayed && !behind) append(writes, weights[0]);
  segments.compute(
      "products",
      buffers_of(output_gradient, normalized, b.projected, b.mixed, b.steps, b.decays, b.states, b.scanned,
                 b.gated, b.gate_inverse, b.in.weight.value, b.out.weight.value, b.convolution_weight.value,
                 value_of(b.convolution_bias), b.step_bias.value, b.decay_log.value, b.skip.value,
                 b.gate_norm.value),
      writes,
      [=](Execution<Space>& x) {
        Ops::linear_backward_input(x, "encore::mamba::out_dgrad", b.out, output_gradient, g.gated_gradient);
        if (!delayed && !behind) Ops::template linear_backward_weight<G>(x, weights[0]);
        run_backward<Space, T, G>({x, geometry, b}, g, accumulate);
        Ops::linear_backward_input(x, "encore::mamba::in_dgrad", b.in, g.projected_gradient,
                                   g.normalized_gradient);
      },
      delayed || behind ? std::vector<BufferId>() : lingering(builder, {weights[0]}));
  const BufferId own_gradient =
      append_sum(builder, segments, "sum", name + "/own_normalized_gradient", g.normalized_gradient);
  if (!delayed) append_weights(builder, segments, behind ? weights : std::vector{weights[1]});
  append_norm_backward(builder, segments, b.norm, b.statistics, b.input, own_gradient, residual, true,
                       g.norm_workspace);
  segments.end();
  if (!delayed) weights.clear();
  return weights;
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                \
  template MambaBuffers append_mamba_forward(StackBuilder<SPACE, T, G>&, std::int64_t, std::int64_t,   \
                                             BufferId);                                                \
  template MambaBuffers append_mamba_recompute(StackBuilder<SPACE, T, G>&, std::int64_t, std::int64_t, \
                                               const MambaBuffers&, bool);                             \
  template std::vector<LinearGradient> append_mamba_backward(StackBuilder<SPACE, T, G>&, std::int64_t, \
                                                             std::int64_t, const MambaBuffers&, BufferId);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
