// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stack_builder.hpp"

#include <encore/kernels/bias.hpp>
#include <encore/kernels/dropout.hpp>
#include <encore/kernels/normalization.hpp>

namespace encore::model {

/// A segment of a layer, without what it reads and writes.
inline Segment segment_of_layer(std::string name, Module module, Phase phase, std::int64_t layer,
                                std::int64_t microbatch) {
  return {std::move(name),
          module,
          phase,
          static_cast<std::int32_t>(layer),
          static_cast<std::int32_t>(microbatch),
          {},
          {}};
}

/// Lists of buffers for a segment's declaration, with optional ones left out.
inline void append(std::vector<BufferId>& list, BufferId id) { list.push_back(id); }
inline void append(std::vector<BufferId>& list, const std::optional<BufferId>& id) {
  if (id) list.push_back(*id);
}
inline void append(std::vector<BufferId>& list, const std::vector<BufferId>& ids) {
  list.insert(list.end(), ids.begin(), ids.end());
}
inline void append(std::vector<BufferId>& list, const NormStatistics& statistics) {
  append(list, statistics.inverse);
  append(list, statistics.mean);
}
/// What computing a weight gradient writes.
inline void append(std::vector<BufferId>& list, const LinearGradient& gradient) {
  append(list, gradient.linear.weight.gradient);
  if (gradient.linear.bias) append(list, gradient.linear.bias->gradient);
  append(list, gradient.workspace);
}
inline void append(std::vector<BufferId>& list, const std::vector<LinearGradient>& gradients) {
  for (const LinearGradient& gradient : gradients) append(list, gradient);
}
template <class... Ids>
std::vector<BufferId> buffers_of(const Ids&... ids) {
  std::vector<BufferId> list;
  (append(list, ids), ...);
  return list;
}
/// A stretch of a buffer.
template <class E, class Space>
backend::Vector<E, Space> stretch_of(const Execution<Space>& x, BufferId id, std::int64_t begin,
                                     std::int64_t end) {
  return backend::Vector<E, Space>(x.template pointer<E>(id) + begin, static_cast<std::size_t>(end - begin));
}
inline std::optional<BufferId> value_of(const std::optional<ParameterBuffers>& parameter) {
  return parameter ? std::optional(parameter->value) : std::nullopt;
}
inline std::optional<BufferId> gradient_of(const std::optional<ParameterBuffers>& parameter) {
  return parameter ? parameter->gradient : std::nullopt;
}

/// Of what a piece of a backward pass works on, what is used beside the main branch. Where something is recomputed memory
/// counts for more than what overlaps.
template <class Space, class T, class G>
std::vector<BufferId> lingering(const StackBuilder<Space, T, G>& builder, std::vector<BufferId> beside) {
  return builder.shape.recompute.empty() ? std::move(beside) : std::vector<BufferId>();
}
/// The same of weight gradients that are computed beside it.
template <class Space, class T, class G>
std::vector<BufferId> lingering(const StackBuilder<Space, T, G>& builder,
                                const std::vector<LinearGradient>& gradients) {
  std::vector<BufferId> beside;
  for (const LinearGradient& gradient : gradients) {
    append(beside, gradient.input);
    append(beside, gradient.output_gradient);
    append(beside, gradient.workspace);
  }
  return lingering(builder, std::move(beside));
}

/// The segment of a backward pass whose weight gradients, and the sums that a norm's workspace holds, are computed
/// beside it.
template <class Space, class T, class G>
Segment with_gradients_beside(const StackBuilder<Space, T, G>& builder, Segment segment,
                              BufferId norm_workspace, const std::vector<LinearGradient>& gradients) {
  segment.lingers = lingering(builder, buffers_of(norm_workspace));
  for (const BufferId id : lingering(builder, gradients)) segment.lingers.push_back(id);
  return segment;
}

/// A weight gradient to be computed, with a new buffer as the workspace that a bias needs.
template <class Space, class T, class G>
LinearGradient linear_gradient(StackBuilder<Space, T, G>& builder, const std::string& workspace,
                               const char* label, const LinearBuffers& linear, BufferId input,
                               BufferId output_gradient) {
  LinearGradient gradient{label, linear, input, output_gradient, std::nullopt};
  const std::vector<std::int64_t> shape = builder.step.program.outline().buffer(output_gradient).shape;
  if (linear.bias)
    gradient.workspace = builder.template add<Accumulator<T>>(
        workspace, {kernels::bias_workspace_rows(shape.front()), shape.back()});
  return gradient;
}

/// The gradient of what a branch adds to the residual stream. It is the stream's own unless dropout changes it, or a
/// delayed weight gradient needs it after the stream's has gone on.
struct BranchGradient {
  BufferId value;
  std::optional<BufferId> dropped, kept;  ///< `value` where it is a buffer of its own
  const char* random = "default";         ///< stream of the dropout
};

template <class Space, class T, class G>
BranchGradient branch_gradient(StackBuilder<Space, T, G>& builder, const std::string& name,
                               BufferId residual) {
  const auto own = [&](const char* suffix) {
    return builder.template add<T>(name + suffix, {builder.stream_tokens(), builder.model.hidden});
  };
  BranchGradient gradient{residual, std::nullopt, std::nullopt, builder.hidden_random()};
  if (builder.drops()) {
    gradient.value = *(gradient.dropped = own("/dropped_gradient"));
  } else if (builder.shape.delay_weight_gradients && !builder.shape.sequence_parallel) {
    gradient.value = *(gradient.kept = own("/output_gradient"));
  }
  return gradient;
}

template <class Space, class T>
struct Operations {
  using A = Accumulator<T>;

  static void norm_forward(Execution<Space>& x, const NormBuffers& norm, const NormStatistics& statistics,
                           BufferId input, BufferId output, double epsilon) {
    if (norm.bias) {
      kernels::layer_norm_forward<Space, T>(
          x.stream(), x.template matrix<const T>(input), x.template vector<const T>(norm.weight.value),
          x.template vector<const T>(norm.bias->value), x.template matrix<T>(output),
          x.template vector<A>(*statistics.mean), x.template vector<A>(statistics.inverse), epsilon);
    } else {
      kernels::rms_norm_forward<Space, T>(
          x.stream(), x.template matrix<const T>(input), x.template vector<const T>(norm.weight.value),
          x.template matrix<T>(output), x.template vector<A>(statistics.inverse), epsilon);
    }
  }

  /// residual becomes the input's gradient: what it held (if `add_residual`) plus what comes through the norm.
  template <class G>
  static void norm_backward(Execution<Space>& x, const NormBuffers& norm, const NormStatistics& statistics,
                            BufferId input, BufferId output_gradient, BufferId residual, bool add_residual,
                            BufferId workspace, bool accumulate) {
    const auto residual_in =
        add_residual ? x.template matrix<const T>(residual) : backend::Matrix<const T, Space>();
    if (norm.bias) {
      kernels::layer_norm_backward<Space, T, G>(
          x.stream(), x.template matrix<const T>(input), x.template vector<const T>(norm.weight.value),
          x.template vector<const A>(*statistics.mean), x.template vector<const A>(statistics.inverse),
          x.template matrix<const T>(output_gradient), residual_in, x.template matrix<T>(residual),
          x.template vector<G>(*norm.weight.gradient), x.template vector<G>(*norm.bias->gradient),
          x.template matrix<A>(workspace), accumulate);
    } else {
      kernels::rms_norm_backward<Space, T, G>(
          x.stream(), x.template matrix<const T>(input), x.template vector<const T>(norm.weight.value),
          x.template vector<const A>(statistics.inverse), x.template matrix<const T>(output_gradient),
          residual_in, x.template matrix<T>(residual), x.template vector<G>(*norm.weight.gradient),
          x.template matrix<A>(workspace), accumulate);
    }
  }

  static std::vector<std::int64_t> norm_workspace(const NormBuffers& norm, std::int64_t tokens,
                                                  std::int64_t hidden) {
    return {kernels::normalization_workspace_rows(tokens, hidden) * (norm.bias ? 2 : 1), hidden};
  }

  static void copy(Execution<Space>& x, const char* label, BufferId from, BufferId to) {
    const auto source = x.template vector<const T>(from);
    x.stream().copy(x.template pointer<T>(to), source.data(), source.size() * sizeof(T), label);
  }

  /// output = input * weight + bias + addend
  static void linear_forward(Execution<Space>& x, const char* label, const LinearBuffers& linear,
                             BufferId input, BufferId output, std::optional<BufferId> addend = std::nullopt) {
    backend::MatrixProductOptions<T> options;
    if (linear.bias) options.bias = x.template pointer<const T>(linear.bias->value);
    if (addend) {
      options.addend = x.template pointer<const T>(*addend);
      options.beta = 1.0F;
    }
    using enum backend::Transpose;
    x.device().blas().template multiply<T, T>(
        x.stream(), label, no, backend::operand<const T, Space>(x.template matrix<const T>(input)),
        linear.inputs_first ? no : yes,
        backend::operand<const T, Space>(x.template matrix<const T>(linear.weight.value)),
        backend::operand<T, Space>(x.template matrix<T>(output)), options);
  }

  /// Fills a branch's gradient where it is a buffer of its own.
  static void fill_branch_gradient(Execution<Space>& x, const char* label, const BranchGradient& gradient,
                                   BufferId residual, BufferId probability, std::uint32_t dropout_segment) {
    if (gradient.dropped)
      kernels::dropout_backward<Space, T>(x.stream(), x.template matrix<const T>(residual),
                                          x.template matrix<T>(*gradient.dropped),
                                          x.template pointer<const double>(probability),
                                          x.device().random().state(gradient.random), dropout_segment);
    if (gradient.kept) copy(x, label, residual, *gradient.kept);
  }

  static void linear_backward_input(Execution<Space>& x, const char* label, const LinearBuffers& linear,
                                    BufferId output_gradient, BufferId input_gradient) {
    using enum backend::Transpose;
    x.device().blas().template multiply<T, T>(
        x.stream(), label, no, backend::operand<const T, Space>(x.template matrix<const T>(output_gradient)),
        linear.inputs_first ? yes : no,
        backend::operand<const T, Space>(x.template matrix<const T>(linear.weight.value)),
        backend::operand<T, Space>(x.template matrix<T>(input_gradient)));
  }

  /// Where a weight gradient of that many elements goes. One whose tiles fill the device several times over leaves
  /// nothing for others to use, and beside the main branch would only make that one wait.
  static backend::Branch beside_unless_full(Execution<Space>& x, std::size_t elements) {
    constexpr std::size_t elements_of_thread = 32;  // Two waves of tiles of 128 x 256 on a GPU.
    const auto threads = static_cast<std::size_t>(x.stream().execution_space().concurrency());
    const backend::Branch branch = x.stream().branch();
    return branch == backend::Branch::main && elements <= elements_of_thread * threads
               ? backend::Branch::beside
               : branch;
  }

  template <class G>
  static void linear_backward_weight(Execution<Space>& x, const LinearGradient& g) {
    const auto gradient = x.template matrix<G>(*g.linear.weight.gradient);
    const backend::BranchScope branch(x.stream(), g.beside && x.stream().branch() == backend::Branch::main
                                                      ? backend::Branch::beside
                                                      : beside_unless_full(x, gradient.size()));
    const LinearBuffers& linear = g.linear;
    backend::MatrixProductOptions<G> options;
    options.addend = gradient.data();
    options.beta = g.accumulate ? 1.0F : 0.0F;
    const auto first = linear.inputs_first ? g.input : g.output_gradient;
    const auto second = linear.inputs_first ? g.output_gradient : g.input;
    using enum backend::Transpose;
    x.device().blas().template multiply<T, G>(
        x.stream(), g.label, yes, backend::operand<const T, Space>(x.template matrix<const T>(first)), no,
        backend::operand<const T, Space>(x.template matrix<const T>(second)),
        backend::operand<G, Space>(gradient), options);
    if (linear.bias)
      kernels::bias_backward<Space, T, G>(x.stream(), x.template matrix<const T>(g.output_gradient),
                                          x.template vector<G>(*linear.bias->gradient),
                                          x.template matrix<A>(g.workspace.value()), g.accumulate);
  }
};

}  // namespace encore::model
