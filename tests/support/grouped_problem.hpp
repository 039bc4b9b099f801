// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "random_values.hpp"
#include "spaces.hpp"
#include "tolerance.hpp"

#include <encore/backend/grouped_blas.hpp>

#include <limits>
#include <string>
#include <vector>

namespace encore::tests {

using namespace encore::backend;

/// How rows are grouped.
struct Grouping {
  std::string name;
  std::vector<std::int32_t> begins, ends;
  std::int64_t rows;

  std::int64_t groups() const { return static_cast<std::int64_t>(begins.size()); }
  /// Of each row, or -1.
  std::vector<std::int64_t> owners() const {
    std::vector<std::int64_t> owner(rows, -1);
    for (std::int64_t group = 0; group < groups(); ++group)
      for (std::int64_t row = begins[group]; row < ends[group]; ++row) owner[row] = group;
    return owner;
  }
};

/// Groups that follow each other; `left` rows after the last belong to none.
inline Grouping dropless(const std::string& name, const std::vector<std::int32_t>& counts,
                         std::int64_t left = 0) {
  Grouping grouping{name, {}, {}, left};
  std::int32_t row = 0;
  for (const std::int32_t count : counts) {
    grouping.begins.push_back(row);
    row += count;
    grouping.ends.push_back(row);
  }
  grouping.rows += row;
  return grouping;
}

/// Each group has room for `capacity` rows, of which it uses its count.
inline Grouping padded(const std::string& name, const std::vector<std::int32_t>& counts,
                       std::int32_t capacity) {
  Grouping grouping{name, {}, {}, static_cast<std::int64_t>(counts.size()) * capacity};
  for (std::size_t group = 0; group < counts.size(); ++group) {
    grouping.begins.push_back(static_cast<std::int32_t>(group) * capacity);
    grouping.ends.push_back(static_cast<std::int32_t>(group) * capacity + counts[group]);
  }
  return grouping;
}

inline std::vector<Grouping> groupings() {
  return {dropless("balanced", {13, 13, 13, 13, 13}),
          dropless("one group", {200}),
          dropless("skewed", {1, 150, 3, 65, 64}),
          dropless("empty groups", {0, 0, 20, 0, 129, 0}),
          dropless("all rows in one group", {0, 0, 0, 170, 0}),
          dropless("one row", {0, 1, 0}),
          dropless("no rows", {0, 0}, 40),
          dropless("rows are left", {70, 9}, 50),
          padded("gaps", {7, 40, 0, 33, 40}, 40),
          dropless("many groups", std::vector<std::int32_t>(70, 3))};
}

/// Values of T that rows of no group lack: there is NaN.
template <class T>
std::vector<double> row_values(const Grouping& grouping, std::int64_t columns, unsigned seed) {
  std::vector<double> values = normal_values<T>(grouping.rows * columns, seed);
  const std::vector<std::int64_t> owners = grouping.owners();
  for (std::int64_t row = 0; row < grouping.rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      if (owners[row] < 0) values[row * columns + column] = std::numeric_limits<double>::quiet_NaN();
  return values;
}

/// result [rows, n] of the rows that have a group; `untouched` in the others.
inline std::vector<double> reference_rows(const Grouping& grouping, std::int64_t n, std::int64_t k,
                                          bool transposed, const std::vector<double>& input,
                                          const std::vector<double>& weights, const std::vector<double>* bias,
                                          double untouched = 0) {
  std::vector<double> result(grouping.rows * n, untouched);
  const std::vector<std::int64_t> owners = grouping.owners();
  for (std::int64_t row = 0; row < grouping.rows; ++row) {
    const std::int64_t group = owners[row];
    if (group < 0) continue;
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = bias != nullptr ? (*bias)[group * n + j] : 0;
      for (std::int64_t p = 0; p < k; ++p)
        sum += input[row * k + p] * weights[group * n * k + (transposed ? j * k + p : p * n + j)];
      result[row * n + j] = sum;
    }
  }
  return result;
}

/// result [groups, m, n], on top of `before` [groups, m, n].
inline std::vector<double> reference_weights(const Grouping& grouping, std::int64_t m, std::int64_t n,
                                             const std::vector<double>& first,
                                             const std::vector<double>& second, std::vector<double> before) {
  const std::vector<std::int64_t> owners = grouping.owners();
  for (std::int64_t row = 0; row < grouping.rows; ++row) {
    if (owners[row] < 0) continue;
    double* result = before.data() + owners[row] * m * n;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) result[i * n + j] += first[row * m + i] * second[row * n + j];
  }
  return before;
}

/// The engines that a space has for products of T.
template <class Space, class T>
std::vector<GroupedBlasEngine> grouped_engines() {
  Stream<Space> stream;
  const GroupedBlas<Space> blas(stream);
  if (blas.engine() == GroupedBlasEngine::cutlass && std::is_same_v<T, bfloat16>)
    return {GroupedBlasEngine::portable, GroupedBlasEngine::cutlass};
  return {GroupedBlasEngine::portable};
}

}  // namespace encore::tests
