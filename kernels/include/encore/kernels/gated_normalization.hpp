// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/columns.hpp>

namespace encore::kernels {

/// With v = input * silu(gate): output = v * inverse * weight, where inverse = 1 / sqrt(mean(v^2) + epsilon) over
/// each of `groups` equal stretches of a row. input, gate and output [rows, columns], weight [columns], inverse
/// [rows, groups]. `output` may be `input`.
template <class Space, class T>
void gated_rms_norm_forward(Stream<Space>& stream, Columns<const T> input, Columns<const T> gate,
                            Vector<const T, Space> weight, Columns<T> output,
                            Matrix<Accumulator<T>, Space> inverse, double epsilon);

/// Rows of the workspace of gated_rms_norm_backward.
std::int64_t gated_rms_norm_workspace_rows(std::int64_t rows);

/// With n = v * inverse, d = output_gradient * weight and e = inverse * (d - n * mean(d * n)):
/// input_gradient = e * silu(gate); gate_gradient = e * input * silu'(gate);
/// weight_gradient (+)= sum over rows of output_gradient * n.
/// workspace [gated_rms_norm_workspace_rows(rows), columns]. A gradient may be the operand that it is the
/// gradient of, or output_gradient.
template <class Space, class T, class G>
void gated_rms_norm_backward(Stream<Space>& stream, Columns<const T> input, Columns<const T> gate,
                             Vector<const T, Space> weight, Matrix<const Accumulator<T>, Space> inverse,
                             Columns<const T> output_gradient, Columns<T> input_gradient,
                             Columns<T> gate_gradient, Vector<G, Space> weight_gradient,
                             Matrix<Accumulator<T>, Space> workspace, bool accumulate);

}  // namespace encore::kernels
