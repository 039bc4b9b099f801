// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

namespace encore::kernels {

/// output = first + second. All [rows, columns]; output may be either input.
template <class Space, class T>
void add(Stream<Space>& stream, Matrix<const T, Space> first, Matrix<const T, Space> second,
         Matrix<T, Space> output);

}  // namespace encore::kernels
