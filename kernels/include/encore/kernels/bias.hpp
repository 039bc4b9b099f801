// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// Rows of the workspace of bias_backward.
std::int64_t bias_workspace_rows(std::int64_t tokens);

/// bias_gradient[c] (+)= sum over rows of output_gradient[., c].
/// output_gradient [tokens, columns], bias_gradient [columns], workspace [bias_workspace_rows(tokens),
/// columns].
template <class Space, class T, class G>
void bias_backward(Stream<Space>& stream, Matrix<const T, Space> output_gradient,
                   Vector<G, Space> bias_gradient, Matrix<Accumulator<T>, Space> workspace, bool accumulate);

}  // namespace encore::kernels
