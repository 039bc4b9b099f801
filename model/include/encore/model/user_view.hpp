// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/error.hpp>
#include <encore/backend/space.hpp>
#include <encore/kernels/strided_matrix.hpp>

#include <string>
#include <type_traits>

namespace encore::model {

/// What is asked of a layout. row_major: the columns of a row are neighbours; rows may lie apart, as in a subview of
/// some columns. either: that, or the same of rows (LayoutLeft: one field behind the other).
enum class RowOrder { row_major, either };

/// Throws ConfigurationError, naming `role`, the view's label, its extents and what is wanted, unless the matrix has at
/// most `rows` rows, exactly `columns` columns and the layout.
void check_user_view(const char* role, const std::string& label, std::int64_t rows, std::int64_t columns,
                     const kernels::StridedMatrix<const std::byte>& shape, RowOrder order);

/// A caller's View as a matrix [cells, columns], by its address: nothing is copied or kept. Rank 2, or rank 1 for one
/// column; managed or not; any layout that check_user_view lets pass. Space must reach its memory and its elements be
/// T; that is checked by the compiler.
template <class T, class Space, class View>
kernels::StridedMatrix<T> user_matrix(const char* role, const View& view, std::int64_t most_rows,
                                      std::int64_t columns, RowOrder order) {
  static_assert(Kokkos::is_view_v<View>, "inputs, outputs and targets are Kokkos views");
  static_assert(
      View::rank() == 2 || View::rank() == 1,
      "inputs, outputs and targets are views of rank 2, [cells, columns], or of rank 1 for one column");
  static_assert(std::is_same_v<typename View::non_const_value_type, std::remove_const_t<T>>,
                "the view's elements must be of the network's type");
  static_assert(std::is_const_v<T> || !std::is_const_v<typename View::value_type>,
                "outputs cannot be written to a view of const elements");
  static_assert(Kokkos::SpaceAccessibility<Space, typename View::memory_space>::accessible,
                "the view's memory cannot be reached from the network's execution space");
  kernels::StridedMatrix<T> matrix{view.data(), static_cast<std::int64_t>(view.extent(0)), 1,
                                   static_cast<std::int64_t>(view.stride(0)), 1};
  if constexpr (View::rank() == 2) {
    matrix.columns = static_cast<std::int64_t>(view.extent(1));
    matrix.column_stride = static_cast<std::int64_t>(view.stride(1));
  }
  check_user_view(role, view.label(), most_rows, columns,
                  {nullptr, matrix.rows, matrix.columns, matrix.row_stride, matrix.column_stride}, order);
  return matrix;
}

}  // namespace encore::model
