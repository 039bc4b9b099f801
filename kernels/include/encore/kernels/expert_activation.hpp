// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

/// The activation between an expert's two products. It also applies the router's weight, which the second
/// product, being linear, passes on: so the experts' outputs need not be kept for the weights' gradient.
namespace encore::kernels {

/// swiglu: gate / (1 + exp(-gate)) * up; a row of `raised` is f gates, then f ups.
/// swiglu_clamped (GPT-OSS): g = min(gate, limit), u = up clamped to [-limit, limit], g / (1 + exp(-1.702 g))
/// * (u + 1); gates and ups alternate, gates first.
/// relu_squared (Nemotron): max(x, 0)^2; `raised` has f columns.
enum class ExpertActivationKind { swiglu, swiglu_clamped, relu_squared };

struct ExpertActivation {
  ExpertActivationKind kind = ExpertActivationKind::swiglu;
  double limit = 7;  ///< of swiglu_clamped
};

/// Columns of `raised` where activated rows have f: 2 f, or f for relu_squared.
std::int64_t raised_columns(const ExpertActivation& activation, std::int64_t ffn);

/// activated[r] = weights[source[r]] * activation(raised[r]) for rows with a source; the others are
/// not written. raised [R, raised_columns(activation, f)]; source [R] of dispatch; weights [N, K];
/// activated [R, f].
/// Throws ConfigurationError if the shapes do not fit. May be captured.
template <class Space, class T>
void expert_activation_forward(Stream<Space>& stream, const ExpertActivation& activation,
                               Matrix<const T, Space> raised, Vector<const std::int32_t, Space> source,
                               Matrix<const Accumulator<T>, Space> weights, Matrix<T, Space> activated);

/// raised_gradient[r] = weights[source[r]] * activated_gradient[r] * activation'(raised[r]) for rows with a
/// source, the others are not written; weight_gradient[source[r]] = dot(activated_gradient[r],
/// activation(raised[r])), and 0 for pairs without a row (row_of -1).
/// activated_gradient [R, f]; row_of, weights and weight_gradient [N, K]; raised_gradient [R, as raised], may
/// be raised; the rest as forward. May be captured; one launch.
template <class Space, class T>
void expert_activation_backward(Stream<Space>& stream, const ExpertActivation& activation,
                                Matrix<const T, Space> raised, Matrix<const T, Space> activated_gradient,
                                Vector<const std::int32_t, Space> source,
                                Matrix<const std::int32_t, Space> row_of,
                                Matrix<const Accumulator<T>, Space> weights, Matrix<T, Space> raised_gradient,
                                Matrix<Accumulator<T>, Space> weight_gradient);

}  // namespace encore::kernels
