// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shapes.hpp"

namespace encore::kernels::impl {

/// Second phase of a sum over tokens: the rows of partial sums are added up, in a fixed order.
template <class A, class G>
struct ColumnSum {
  struct Sum {
    const A* partials;  ///< [rows, columns]
    G* result;          ///< [columns]
  };

  static constexpr int threads = 256;
  /// A team covers 8 columns (one 32-byte sector of float) with 32 threads each; a host thread one vector
  /// loop.
  static constexpr int device_columns = 8;
  static constexpr int host_columns = 64;

  Sum sums[2];
  std::int64_t strips, rows, columns;
  bool accumulate;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t which = team.league_rank() / strips;
    const std::int64_t strip = team.league_rank() - which * strips;
    if constexpr (is_host_team<Team>)
      sum_on_host(sums[which], strip * host_columns);
    else
      sum_on_device(team, sums[which], strip * device_columns);
  }

 private:
  KOKKOS_FUNCTION void finish(const Sum& sum, std::int64_t column, A total) const {
    if (accumulate) total += static_cast<A>(sum.result[column]);
    sum.result[column] = static_cast<G>(total);
  }

  KOKKOS_FUNCTION void sum_on_host(const Sum& sum, std::int64_t begin) const {
    const std::int64_t count = columns - begin < host_columns ? columns - begin : host_columns;
    A total[host_columns] = {};
    for (std::int64_t row = 0; row < rows; ++row) {
      const A* partials = sum.partials + row * columns + begin;
#pragma GCC ivdep
      for (std::int64_t c = 0; c < count; ++c) total[c] += partials[c];
    }
    for (std::int64_t c = 0; c < count; ++c) finish(sum, begin + c, total[c]);
  }

  template <class Team>
  KOKKOS_FUNCTION void sum_on_device(const Team& team, const Sum& sum, std::int64_t begin) const {
    constexpr int lanes = threads / device_columns;
    constexpr int unroll = 8;
    const int x = team.rank() % device_columns, y = team.rank() / device_columns;
    const std::int64_t column = begin + x;
    A total(0);
    if (column < columns) {
      const A* partials = sum.partials + column;
      std::int64_t row = y;
      for (; row + (unroll - 1) * lanes < rows; row += unroll * lanes) {
        A value[unroll];
        for (int u = 0; u < unroll; ++u) value[u] = partials[(row + u * lanes) * columns];
        for (int u = 0; u < unroll; ++u) total += value[u];
      }
      for (; row < rows; row += lanes) total += partials[row * columns];
    }
    // Of the lanes' sums, first every eighth, then those eight.
    constexpr int steps = 8;
    A* scratch = team.template scratch<A>();
    scratch[team.rank()] = total;
    team.barrier();
    if (y < steps) {
      for (int lane = y + steps; lane < lanes; lane += steps) total += scratch[lane * device_columns + x];
      scratch[team.rank()] = total;
    }
    team.barrier();
    if (y == 0 && column < columns) {
      for (int lane = 1; lane < steps; ++lane) total += scratch[lane * device_columns + x];
      finish(sum, column, total);
    }
  }
};

/// Queues the sums over the rows of one or two [rows, columns] arrays of partial sums; the second may be
/// empty. As gradients of parameters, nothing but the optimizer waits for them.
template <class Space, class A, class G>
void column_sum(Stream<Space>& stream, const char* label, std::int64_t rows, std::int64_t columns,
                bool accumulate, typename ColumnSum<A, G>::Sum first,
                typename ColumnSum<A, G>::Sum second = {}) {
  using Functor = ColumnSum<A, G>;
  constexpr int width = backend::is_host_space<Space> ? Functor::host_columns : Functor::device_columns;
  const std::int64_t strips = rounded_up_quotient(columns, width);
  const std::size_t second_columns = second.result == nullptr ? 0 : columns;
  const backend::BesideScope<Space> beside(stream);
  launch(
      stream, label,
      {backend::read(first.partials, rows * columns), backend::read(second.partials, rows * second_columns),
       backend::write(first.result, columns), backend::write(second.result, second_columns)},
      backend::Teams<Functor::threads>{second_columns == 0 ? strips : 2 * strips,
                                       Functor::threads * sizeof(A)},
      Functor{{first, second}, strips, rows, columns, accumulate});
}

}  // namespace encore::kernels::impl
