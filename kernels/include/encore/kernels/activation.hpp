// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// exact: x * (1 + erf(x / sqrt 2)) / 2. tanh: the approximation of GPT-2 (`gelu_new`), Hendrycks and Gimpel,
/// 2016.
enum class Gelu { exact, tanh };

/// output = gelu(input). Both [rows, columns]; output may be input.
template <class Space, class T>
void gelu_forward(Stream<Space>& stream, Gelu kind, Matrix<const T, Space> input, Matrix<T, Space> output);

/// input_gradient = output_gradient * gelu'(input). All [rows, columns]; input_gradient may be either input.
template <class Space, class T>
void gelu_backward(Stream<Space>& stream, Gelu kind, Matrix<const T, Space> input,
                   Matrix<const T, Space> output_gradient, Matrix<T, Space> input_gradient);

/// output = gate / (1 + exp(-gate)) * up. gate_up [tokens, 2 * ffn], the gate in the first half of a row and
/// up in the second; output [tokens, ffn]. Shazeer, "GLU Variants Improve Transformer", 2020.
template <class Space, class T>
void swiglu_forward(Stream<Space>& stream, Matrix<const T, Space> gate_up, Matrix<T, Space> output);

/// Gradient with respect to gate and up. gate_up and gate_up_gradient [tokens, 2 * ffn], may be the same;
/// output_gradient [tokens, ffn].
template <class Space, class T>
void swiglu_backward(Stream<Space>& stream, Matrix<const T, Space> gate_up,
                     Matrix<const T, Space> output_gradient, Matrix<T, Space> gate_up_gradient);

/// output = g / (1 + exp(-1.702 g)) * (u + 1) with g = min(gate, limit) and u = up held within [-limit, limit]: that
/// of GPT-OSS. Shapes as swiglu_forward; limit above 0.
template <class Space, class T>
void swiglu_clamped_forward(Stream<Space>& stream, double limit, Matrix<const T, Space> gate_up,
                            Matrix<T, Space> output);

/// Gradient with respect to gate and up; none flows past a limit. Shapes as swiglu_backward.
template <class Space, class T>
void swiglu_clamped_backward(Stream<Space>& stream, double limit, Matrix<const T, Space> gate_up,
                             Matrix<const T, Space> output_gradient, Matrix<T, Space> gate_up_gradient);

/// output = max(input, 0)^2. Both [rows, columns]; output may be input. So et al., "Primer", 2021.
template <class Space, class T>
void relu_squared_forward(Stream<Space>& stream, Matrix<const T, Space> input, Matrix<T, Space> output);

/// input_gradient = output_gradient * 2 max(input, 0). All [rows, columns]; input_gradient may be either input.
template <class Space, class T>
void relu_squared_backward(Stream<Space>& stream, Matrix<const T, Space> input,
                           Matrix<const T, Space> output_gradient, Matrix<T, Space> input_gradient);

}  // namespace encore::kernels
