// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// output[t] = (sum over k, in order, of expert_output[row_of[t, k]]) + shared[t] + addend[t], rounded once;
/// pairs without a row (-1) add nothing. The rows carry their weights already (expert_activation_forward).
/// expert_output [R, hidden]; row_of [N, K] of dispatch; addend (the residual stream) and shared [N, hidden],
/// each may be empty; output [N, hidden], may be addend or shared. The gradient of addend and shared is the
/// output's, that of expert_output is gather_rows of it. Throws ConfigurationError if the shapes do not fit.
/// May be captured.
template <class Space, class T>
void combine_forward(Stream<Space>& stream, Matrix<const T, Space> expert_output,
                     Matrix<const std::int32_t, Space> row_of, Matrix<const T, Space> addend,
                     Matrix<const T, Space> shared, Matrix<T, Space> output);

}  // namespace encore::kernels
