// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/strided_matrix.hpp>
#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// Length of the workspace of mean_squared_error.
std::int64_t squared_error_partial_count(std::int64_t elements);

/// *error = mean of (output - target)^2 over all elements, summed in double; output_gradient = its gradient,
/// 2 (output - target) / elements. output and target [rows, columns] in any layout, output_gradient [rows, columns],
/// partials [squared_error_partial_count(rows * columns)]. Without elements *error is 0. All is device memory, `error` too;
/// may be captured. Throws DeviceError if a launch is refused.
template <class Space, class T>
void mean_squared_error(Stream<Space>& stream, StridedMatrix<const T> output, StridedMatrix<const T> target,
                        Matrix<T, Space> output_gradient, Vector<double, Space> partials, double* error);

}  // namespace encore::kernels
