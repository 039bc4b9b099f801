// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/columns.hpp>

namespace encore::kernels {

/// output[t][c] = silu(bias[c] + sum over k < width of weight[c][k] * input[t - width + 1 + k][c]), where tokens
/// before the first of a sequence count as zero. input and output [sequences * tokens, channels], weight
/// [channels, width] with width 2 to 8, bias [channels] or empty. They must not overlap.
template <class Space, class T>
void causal_convolution_forward(Stream<Space>& stream, std::int64_t sequences, Columns<const T> input,
                                Matrix<const T, Space> weight, Vector<const T, Space> bias,
                                Columns<T> output);

/// Rows of the workspace of causal_convolution_backward.
std::int64_t causal_convolution_workspace_rows(std::int64_t sequences, std::int64_t tokens_of_sequence);

/// With d = output_gradient * silu'(what forward applied silu to), which is computed again:
/// input_gradient[t][c] = sum over k of weight[c][k] * d[t + width - 1 - k][c];
/// weight_gradient[c][k] (+)= sum over t of d[t][c] * input[t - width + 1 + k][c]; bias_gradient (+)= sum of d.
/// workspace [causal_convolution_workspace_rows(sequences, tokens), channels * (width + 1)], partial sums over
/// tokens. input_gradient must overlap neither input nor output_gradient.
template <class Space, class T, class G>
void causal_convolution_backward(Stream<Space>& stream, std::int64_t sequences, Columns<const T> input,
                                 Matrix<const T, Space> weight, Vector<const T, Space> bias,
                                 Columns<const T> output_gradient, Columns<T> input_gradient,
                                 Matrix<G, Space> weight_gradient, Vector<G, Space> bias_gradient,
                                 Matrix<Accumulator<T>, Space> workspace, bool accumulate);

}  // namespace encore::kernels
