// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

/// The biases of experts' products (GPT-OSS). That of the first product is added by the product itself; that
/// of the second counts by the router's weight, which the rows carry already (expert_activation_forward).
namespace encore::kernels {

/// output[r] += weights[source[r]] * bias[experts[source[r]]] for rows with a source; the others are not
/// touched.
/// bias [E, hidden]; source [R] of dispatch; weights and experts [N, K] of router_forward; output [R,
/// hidden].
/// Throws ConfigurationError if the shapes do not fit. May be captured.
template <class Space, class T>
void expert_bias_forward(Stream<Space>& stream, Matrix<const T, Space> bias,
                         Vector<const std::int32_t, Space> source,
                         Matrix<const Accumulator<T>, Space> weights,
                         Matrix<const std::int32_t, Space> experts, Matrix<T, Space> output);

/// Rows of the workspace of expert_bias_backward.
std::int64_t expert_bias_workspace_rows(std::int64_t rows, std::int64_t experts);

/// bias_gradient[e] (+)= sum over the rows r of expert e of weights[source[r]] * output_gradient[r], or of
/// output_gradient[r] alone if `weights` is empty (the first product's bias). An expert without rows gets
/// zeros, or keeps what it has when accumulating.
/// output_gradient [R, n]; begins and ends [E], source [R] of dispatch; bias_gradient [E, n]; workspace
/// [expert_bias_workspace_rows(R, E), n]. May be captured.
template <class Space, class T, class G>
void expert_bias_backward(Stream<Space>& stream, Matrix<const T, Space> output_gradient,
                          Vector<const std::int32_t, Space> begins, Vector<const std::int32_t, Space> ends,
                          Vector<const std::int32_t, Space> source,
                          Matrix<const Accumulator<T>, Space> weights, Matrix<G, Space> bias_gradient,
                          Matrix<Accumulator<T>, Space> workspace, bool accumulate);

/// weight_gradient[source[r]] += dot(output_gradient[r], bias[experts[source[r]]]) for rows with a source:
/// the share of the second product's bias, to be called after expert_activation_backward. output_gradient [R,
/// hidden]; bias [E, hidden]; experts and weight_gradient [N, K]. May be captured.
template <class Space, class T>
void expert_bias_weight_gradient(Stream<Space>& stream, Matrix<const T, Space> output_gradient,
                                 Matrix<const T, Space> bias, Vector<const std::int32_t, Space> source,
                                 Matrix<const std::int32_t, Space> experts,
                                 Matrix<Accumulator<T>, Space> weight_gradient);

}  // namespace encore::kernels
