// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace encore::kernels {

/// A matrix in somebody else's layout: element (i, j) is data[i * row_stride + j * column_stride]. Strides are not negative.
template <class T>
struct StridedMatrix {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 0;

  /// Elements from the first to the last, gaps included.
  std::size_t span() const {
    return rows == 0 || columns == 0
               ? 0
               : static_cast<std::size_t>((rows - 1) * row_stride + (columns - 1) * column_stride + 1);
  }
  template <class Const>
    requires(std::is_same_v<Const, const T> && !std::is_const_v<T>)
  operator StridedMatrix<Const>() const { return {data, rows, columns, row_stride, column_stride}; }
};

}  // namespace encore::kernels
