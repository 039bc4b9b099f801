// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/philox.hpp>
#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// output = keep * input / (1 - probability) + residual, where element e (row-major) is kept if its uniform
/// number, random_uniform(*state, segment, e), is at least the probability. All [rows, columns]; residual may
/// be empty; output may be either input. `probability` and `state` are device addresses.
template <class Space, class T>
void dropout_forward(Stream<Space>& stream, Matrix<const T, Space> input, Matrix<const T, Space> residual,
                     Matrix<T, Space> output, const double* probability, const backend::RandomState* state,
                     std::uint32_t segment);

/// input_gradient = keep * output_gradient / (1 - probability), with the mask of the forward call that had
/// the same segment and state. input_gradient may be output_gradient.
template <class Space, class T>
void dropout_backward(Stream<Space>& stream, Matrix<const T, Space> output_gradient,
                      Matrix<T, Space> input_gradient, const double* probability,
                      const backend::RandomState* state, std::uint32_t segment);

}  // namespace encore::kernels
