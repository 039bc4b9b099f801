// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/access.hpp>
#include <encore/backend/blas.hpp>
#include <encore/backend/error.hpp>

#include <string>

namespace encore::backend::impl {

struct ProductShape {
  std::int64_t m, n, k;
};

template <class T>
std::string shape_text(const char* name, bool transposed, const MatrixOperand<T>& matrix) {
  return std::string(name) + " [" + std::to_string(matrix.rows) + ", " + std::to_string(matrix.columns) +
         "] stride " + std::to_string(matrix.stride) + (transposed ? " transposed" : "");
}

/// The product's extents. Throws InternalError naming label and shapes when the operands do not fit together.
template <class T, class Result>
ProductShape check_product(const char* label, Transpose transpose_first, const MatrixOperand<const T>& first,
                           Transpose transpose_second, const MatrixOperand<const T>& second,
                           const MatrixOperand<Result>& result, const MatrixProductOptions<Result>& options) {
  const bool first_transposed = transpose_first == Transpose::yes;
  const bool second_transposed = transpose_second == Transpose::yes;
  const std::int64_t m = first_transposed ? first.columns : first.rows;
  const std::int64_t k = first_transposed ? first.rows : first.columns;
  const std::int64_t second_k = second_transposed ? second.columns : second.rows;
  const std::int64_t n = second_transposed ? second.rows : second.columns;
  const bool strides_fit =
      first.stride >= first.columns && second.stride >= second.columns && result.stride >= result.columns &&
      (options.addend == nullptr || options.addend_stride == 0 || options.addend_stride >= result.columns);
  if (k != second_k || result.rows != m || result.columns != n || !strides_fit)
    throw InternalError("matrix product '" + std::string(label) +
                        "': " + shape_text("first", first_transposed, first) + ", " +
                        shape_text("second", second_transposed, second) + ", " +
                        shape_text("result", false, result) + " do not fit together");
  return {m, n, k};
}

template <class T>
Access matrix_access(const MatrixOperand<T>& matrix, bool writes) {
  if (matrix.rows == 0 || matrix.columns == 0) return {};
  const auto* begin = reinterpret_cast<const std::byte*>(matrix.data);
  return {begin, begin + ((matrix.rows - 1) * matrix.stride + matrix.columns) * sizeof(T), writes};
}

}  // namespace encore::backend::impl
