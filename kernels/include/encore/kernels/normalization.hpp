// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// output = input * inverse_rms * weight, inverse_rms = 1 / sqrt(mean(input^2) + epsilon) of each row.
/// input and output [tokens, hidden], weight [hidden], inverse_rms [tokens]. Zhang and Sennrich, "Root Mean
/// Square Layer Normalization", 2019. `output` may be `input`.
template <class Space, class T>
void rms_norm_forward(Stream<Space>& stream, Matrix<const T, Space> input, Vector<const T, Space> weight,
                      Matrix<T, Space> output, Vector<Accumulator<T>, Space> inverse_rms, double epsilon);

/// output = (input - mean) * inverse_std * weight + bias, inverse_std = 1 / sqrt(variance + epsilon) of each
/// row, with the biased variance. Shapes as above, bias [hidden] or empty, mean and inverse_std [tokens]. Ba,
/// Kiros and Hinton, "Layer Normalization", 2016.
template <class Space, class T>
void layer_norm_forward(Stream<Space>& stream, Matrix<const T, Space> input, Vector<const T, Space> weight,
                        Vector<const T, Space> bias, Matrix<T, Space> output,
                        Vector<Accumulator<T>, Space> mean, Vector<Accumulator<T>, Space> inverse_std,
                        double epsilon);

/// Rows of the workspace of rms_norm_backward; layer_norm_backward needs twice as many.
std::int64_t normalization_workspace_rows(std::int64_t tokens, std::int64_t hidden);

/// With n = input * inverse_rms and d = output_gradient * weight:
/// input_gradient = inverse_rms * (d - n * mean(d * n)) + residual_gradient;
/// weight_gradient (+)= sum over rows of output_gradient * n.
/// residual_gradient [tokens, hidden] or empty; input_gradient may be residual_gradient or output_gradient;
/// workspace [normalization_workspace_rows(tokens, hidden), hidden].
template <class Space, class T, class G>
void rms_norm_backward(Stream<Space>& stream, Matrix<const T, Space> input, Vector<const T, Space> weight,
                       Vector<const Accumulator<T>, Space> inverse_rms,
                       Matrix<const T, Space> output_gradient, Matrix<const T, Space> residual_gradient,
                       Matrix<T, Space> input_gradient, Vector<G, Space> weight_gradient,
                       Matrix<Accumulator<T>, Space> workspace, bool accumulate);

/// With n = (input - mean) * inverse_std and d = output_gradient * weight:
/// input_gradient = inverse_std * (d - mean(d) - n * mean(d * n)) + residual_gradient;
/// weight_gradient (+)= sum of output_gradient * n; bias_gradient (+)= sum of output_gradient (or empty).
/// workspace [2 * normalization_workspace_rows(tokens, hidden), hidden]; aliases as above.
template <class Space, class T, class G>
void layer_norm_backward(Stream<Space>& stream, Matrix<const T, Space> input, Vector<const T, Space> weight,
                         Vector<const Accumulator<T>, Space> mean,
                         Vector<const Accumulator<T>, Space> inverse_std,
                         Matrix<const T, Space> output_gradient, Matrix<const T, Space> residual_gradient,
                         Matrix<T, Space> input_gradient, Vector<G, Space> weight_gradient,
                         Vector<G, Space> bias_gradient, Matrix<Accumulator<T>, Space> workspace,
                         bool accumulate);

}  // namespace encore::kernels
