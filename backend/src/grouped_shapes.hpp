// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "blas_shapes.hpp"

#include <encore/backend/grouped_blas.hpp>

#include <limits>

namespace encore::backend::impl {

/// The extents that the groups share; the third is a group's number of rows.
struct GroupedShape {
  std::int64_t m, n, k;
};

/// Operations on all rows, also those that no group has.
inline double flops_of(const GroupedShape& shape) {
  return 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k);
}

inline void check_groups(const char* label, const RowGroups& groups) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (groups.groups < 0 || groups.groups > most || groups.rows < 0 || groups.rows > most)
    throw InternalError("grouped product '" + std::string(label) + "': " + std::to_string(groups.groups) +
                        " groups of " + std::to_string(groups.rows) + " rows cannot be counted in 32 bits");
}

/// Throws InternalError naming label and shapes when the operands do not fit together.
template <class T>
GroupedShape check_rows_product(const char* label, const RowGroups& groups,
                                const MatrixOperand<const T>& input, const MatrixOperand<T>& result) {
  check_groups(label, groups);
  if (input.rows != groups.rows || result.rows != groups.rows || input.stride < input.columns ||
      result.stride < result.columns)
    throw InternalError("grouped product '" + std::string(label) + "': " + shape_text("input", false, input) +
                        ", " + shape_text("result", false, result) + " do not fit " +
                        std::to_string(groups.rows) + " rows");
  return {groups.rows, result.columns, input.columns};
}

template <class T>
GroupedShape check_weights_product(const char* label, const RowGroups& groups,
                                   const MatrixOperand<const T>& first,
                                   const MatrixOperand<const T>& second) {
  check_groups(label, groups);
  if (first.rows != groups.rows || second.rows != groups.rows || first.stride < first.columns ||
      second.stride < second.columns)
    throw InternalError("grouped product '" + std::string(label) + "': " + shape_text("first", true, first) +
                        ", " + shape_text("second", false, second) + " do not fit " +
                        std::to_string(groups.rows) + " rows");
  return {first.columns, second.columns, groups.rows};
}

/// All that may be in a tile of rows, whatever the groups' sizes: sum of ceil(rows / tile) <= rows / tile + groups.
inline std::int64_t most_row_tiles(const RowGroups& groups, std::int64_t tile) {
  return groups.rows / tile + std::min(groups.groups, groups.rows);
}

}  // namespace encore::backend::impl
