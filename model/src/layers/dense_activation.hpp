// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stack_builder.hpp"

#include <encore/kernels/activation.hpp>

namespace encore::model {

/// Columns that a product must have before the activation, for `ffn` columns after it.
inline std::int64_t raised_width(const ModelConfiguration& model, std::int64_t ffn) {
  return is_gated(model.activation) ? 2 * ffn : ffn;
}

/// The activation between the two products of an MLP or a shared expert.
struct DenseActivation {
  Activation kind;
  double limit;  ///< of swiglu_clamped

  template <class T, class Space>
  void forward(Execution<Space>& x, BufferId raised, BufferId activated) const {
    const auto from = x.template matrix<const T>(raised);
    const auto to = x.template matrix<T>(activated);
    switch (kind) {
      case Activation::gelu:
        return kernels::gelu_forward<Space, T>(x.stream(), kernels::Gelu::exact, from, to);
      case Activation::gelu_tanh:
        return kernels::gelu_forward<Space, T>(x.stream(), kernels::Gelu::tanh, from, to);
      case Activation::swiglu: return kernels::swiglu_forward<Space, T>(x.stream(), from, to);
      case Activation::swiglu_clamped:
        return kernels::swiglu_clamped_forward<Space, T>(x.stream(), limit, from, to);
      case Activation::relu_squared: return kernels::relu_squared_forward<Space, T>(x.stream(), from, to);
    }
  }

  /// `raised` turns into its own gradient: nothing else reads it any more.
  template <class T, class Space>
  void backward(Execution<Space>& x, BufferId raised, BufferId activated_gradient) const {
    const auto from = x.template matrix<const T>(raised);
    const auto gradient = x.template matrix<const T>(activated_gradient);
    const auto to = x.template matrix<T>(raised);
    switch (kind) {
      case Activation::gelu:
        return kernels::gelu_backward<Space, T>(x.stream(), kernels::Gelu::exact, from, gradient, to);
      case Activation::gelu_tanh:
        return kernels::gelu_backward<Space, T>(x.stream(), kernels::Gelu::tanh, from, gradient, to);
      case Activation::swiglu: return kernels::swiglu_backward<Space, T>(x.stream(), from, gradient, to);
      case Activation::swiglu_clamped:
        return kernels::swiglu_clamped_backward<Space, T>(x.stream(), limit, from, gradient, to);
      case Activation::relu_squared:
        return kernels::relu_squared_backward<Space, T>(x.stream(), from, gradient, to);
    }
  }
};

inline DenseActivation dense_activation(const ModelConfiguration& model) {
  return {model.activation, model.swiglu_limit};
}

}  // namespace encore::model
