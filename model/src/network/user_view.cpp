// SPDX-License-Identifier: Apache-2.0
#include <encore/model/user_view.hpp>

#include <fmt/format.h>

namespace encore::model {

namespace {

bool is_row_major(const kernels::StridedMatrix<const std::byte>& m) {
  return (m.columns == 1 || m.column_stride == 1) && (m.rows == 1 || m.row_stride >= m.columns);
}
bool is_column_major(const kernels::StridedMatrix<const std::byte>& m) {
  return (m.rows == 1 || m.row_stride == 1) && (m.columns == 1 || m.column_stride >= m.rows);
}

}  // namespace

void check_user_view(const char* role, const std::string& label, std::int64_t rows, std::int64_t columns,
                     const kernels::StridedMatrix<const std::byte>& shape, RowOrder order) {
  const bool fits = shape.rows >= 1 && shape.rows <= rows && shape.columns == columns;
  if (fits && (is_row_major(shape) || (order == RowOrder::either && is_column_major(shape)))) return;
  const std::string name = fmt::format("{}: the view '{}' [{}, {}]", role, label, shape.rows, shape.columns);
  if (!fits)
    throw ConfigurationError(fmt::format(
        "{} should be [cells, {}] with 1 to {} cells: give it these extents, or make the network with "
        "other widths or rows",
        name, columns, rows));
  throw ConfigurationError(fmt::format("{} has strides ({}, {}), but {}: declare it with Kokkos::LayoutRight",
                                       name, shape.row_stride, shape.column_stride,
                                       order == RowOrder::either
                                           ? "rows or columns must be without gaps inside"
                                           : "the columns of a row must be neighbours (stride 1)"));
}

}  // namespace encore::model
