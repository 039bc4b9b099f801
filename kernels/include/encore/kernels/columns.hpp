// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/kernels/types.hpp>

#include <cstddef>
#include <type_traits>

namespace encore::kernels {

/// A stretch of columns of a row-major matrix: element (i, j) is data[i * stride + j].
template <class T>
struct Columns {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;

  /// Elements from the first to the last, those between the rows included.
  std::size_t span() const {
    return rows == 0 || columns == 0 ? 0 : static_cast<std::size_t>((rows - 1) * stride + columns);
  }
  template <class Const>
    requires(std::is_same_v<Const, const T> && !std::is_const_v<T>)
  operator Columns<Const>() const { return {data, rows, columns, stride}; }
};

/// `count` columns of a matrix from `first` on. Views only; the caller sees to it that they exist.
template <class T, class Space>
Columns<T> columns_of(const Matrix<T, Space>& matrix, std::int64_t first, std::int64_t count) {
  const auto stride = static_cast<std::int64_t>(matrix.extent(1));
  return {matrix.data() + first, static_cast<std::int64_t>(matrix.extent(0)), count, stride};
}
template <class T, class Space>
Columns<T> columns_of(const Matrix<T, Space>& matrix) {
  return columns_of<T, Space>(matrix, 0, static_cast<std::int64_t>(matrix.extent(1)));
}

}  // namespace encore::kernels
