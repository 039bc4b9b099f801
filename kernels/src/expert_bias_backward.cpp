// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/expert_bias.hpp>

#include "store_sums.hpp"

namespace encore::kernels {

namespace {

/// Rows that one team sums in the first phase, however they are spread over experts.
constexpr int chunk_rows = 64;

/// First phase. Experts lie in rising order, so a chunk of rows and an expert that meet have a row of partial
/// sums of their own: chunk + expert. From one meeting to the next either number rises.
template <int Width, class T>
struct ChunkSums {
  using A = Accumulator<T>;
  static constexpr int threads = 256;
  static constexpr int strip_threads = 32;

  const T* gradient;
  const std::int32_t* begins;
  const std::int32_t* ends;
  const std::int32_t* source;
  const A* weights;  ///< may be null: all 1
  A* partials;
  std::int64_t experts, columns, strips;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t chunk = team.league_rank() / strips, strip = team.league_rank() - chunk * strips;
    const std::int64_t chunk_begin = chunk * chunk_rows, chunk_end = chunk_begin + chunk_rows;
    for (std::int64_t e = first_expert(chunk_begin); e < experts && begins[e] < chunk_end; ++e) {
      const std::int64_t begin = begins[e] > chunk_begin ? begins[e] : chunk_begin;
      const std::int64_t end = ends[e] < chunk_end ? ends[e] : chunk_end;
      if (begin >= end) continue;
      A* sums = partials + (chunk + e) * columns;
      if constexpr (impl::is_host_team<Team>)
        sum_on_host(begin, end, sums);
      else
        sum_on_device(team, strip, begin, end, sums);
    }
  }

 private:
  /// The first expert that ends behind `row`.
  KOKKOS_FUNCTION std::int64_t first_expert(std::int64_t row) const {
    std::int64_t low = 0, high = experts;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (ends[middle] > row)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }

  KOKKOS_FUNCTION A weight_of(std::int64_t row) const {
    return weights == nullptr ? A(1) : weights[source[row]];
  }

  KOKKOS_FUNCTION void sum_on_host(std::int64_t begin, std::int64_t end, A* sums) const {
    for (std::int64_t c = 0; c < columns; ++c) sums[c] = 0;
    for (std::int64_t row = begin; row < end; ++row) {
      const A weight = weight_of(row);
      const T* values = gradient + row * columns;
#pragma GCC ivdep
      for (std::int64_t c = 0; c < columns; ++c) sums[c] += weight * static_cast<A>(values[c]);
    }
  }

  template <class Team>
  KOKKOS_FUNCTION void sum_on_device(const Team& team, std::int64_t strip, std::int64_t begin,
                                     std::int64_t end, A* sums) const {
    constexpr int unroll = 4;
    constexpr int lanes = threads / strip_threads;
    const int x = team.rank() % strip_threads, y = team.rank() / strip_threads;
    const std::int64_t column = (strip * strip_threads + x) * Width;
    A total[Width] = {};
    if (column < columns) {
      for (std::int64_t row = begin + y; row < end; row += unroll * lanes) {
        backend::Packet<T, Width> value[unroll] = {};
        A weight[unroll] = {};
        for (int u = 0; u < unroll; ++u) {
          if (row + u * lanes >= end) continue;
          weight[u] = weight_of(row + u * lanes);
          value[u] = backend::load_packet<Width>(gradient + (row + u * lanes) * columns + column);
        }
        for (int u = 0; u < unroll; ++u)
          for (int i = 0; i < Width; ++i) total[i] += weight[u] * static_cast<A>(value[u][i]);
      }
    }
    A* scratch = team.template scratch<A>();
    for (int i = 0; i < Width; ++i) scratch[i * threads + team.rank()] = total[i];
    team.barrier();
    if (y == 0 && column < columns) {
      for (int i = 0; i < Width; ++i)
        for (int lane = 1; lane < lanes; ++lane) total[i] += scratch[i * threads + lane * strip_threads + x];
      impl::store_sums<Width>(sums + column, total, false);
    }
    team.barrier();
  }
};

/// Second phase: an expert's partial sums.
template <class A, class G>
struct JoinChunks {
  static constexpr int threads = 256;
  static constexpr int strip_columns = 32;

  const A* partials;
  const std::int32_t* begins;
  const std::int32_t* ends;
  G* result;
  std::int64_t columns, strips;
  bool accumulate;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t e = team.league_rank() / strips, strip = team.league_rank() - e * strips;
    const std::int64_t begin = begins[e], end = ends[e];
    const std::int64_t first = begin / chunk_rows;
    const std::int64_t parts = begin < end ? (end - 1) / chunk_rows - first + 1 : 0;
    const A* rows = partials + (first + e) * columns;
    G* sums = result + e * columns;
    if constexpr (impl::is_host_team<Team>) {
      for (std::int64_t c = 0; c < columns; ++c) {
        A total(0);
        for (std::int64_t part = 0; part < parts; ++part) total += rows[part * columns + c];
        impl::store_sums<1>(sums + c, &total, accumulate);
      }
    } else {
      constexpr int lanes = threads / strip_columns;
      const int x = team.rank() % strip_columns, y = team.rank() / strip_columns;
      const std::int64_t column = strip * strip_columns + x;
      A total(0);
      if (column < columns)
        for (std::int64_t part = y; part < parts; part += lanes) total += rows[part * columns + column];
      A* scratch = team.template scratch<A>();
      scratch[team.rank()] = total;
      team.barrier();
      if (y != 0 || column >= columns) return;
      for (int lane = 1; lane < lanes; ++lane) total += scratch[lane * strip_columns + x];
      impl::store_sums<1>(sums + column, &total, accumulate);
    }
  }
};

}  // namespace

std::int64_t expert_bias_workspace_rows(std::int64_t rows, std::int64_t experts) {
  return impl::rounded_up_quotient(rows, chunk_rows) + experts;
}

template <class Space, class T, class G>
void expert_bias_backward(Stream<Space>& stream, Matrix<const T, Space> output_gradient,
                          Vector<const std::int32_t, Space> begins, Vector<const std::int32_t, Space> ends,
                          Vector<const std::int32_t, Space> source,
                          Matrix<const Accumulator<T>, Space> weights, Matrix<G, Space> bias_gradient,
                          Matrix<Accumulator<T>, Space> workspace, bool accumulate) {
  using A = Accumulator<T>;
  const std::int64_t rows = impl::rows_of(output_gradient), columns = impl::columns_of(output_gradient);
  const std::int64_t experts = impl::rows_of(bias_gradient);
  impl::require_shape(
      impl::is_matrix(output_gradient, rows, columns) && impl::is_vector(begins, experts) &&
          impl::is_vector(ends, experts) && impl::is_vector(source, rows) &&
          (impl::is_empty(weights) || weights.span_is_contiguous()) &&
          impl::is_matrix(bias_gradient, experts, columns),
      "expert_bias_backward: begins and ends must be [experts], source [rows], weights [tokens, topk] "
      "or empty and bias_gradient [experts, columns] where output_gradient is [rows, columns]");
  impl::require_shape(
      impl::has_rows(workspace, expert_bias_workspace_rows(rows, experts), columns),
      "expert_bias_backward: the workspace must be [expert_bias_workspace_rows(rows, experts), columns]");
  constexpr bool host = backend::is_host_space<Space>;
  impl::with_width<Space, backend::packet_width<T>>(
      columns,
      [&](auto width) {
        using Functor = ChunkSums<width, T>;
        const std::int64_t strips =
            host ? 1 : impl::rounded_up_quotient(columns, std::int64_t(width) * Functor::strip_threads);
        launch(stream, "expert_bias/backward/chunks",
               {backend::read(output_gradient), backend::read(begins), backend::read(ends),
                backend::read(source), backend::read(weights), backend::write(workspace)},
               backend::Teams<Functor::threads>{impl::rounded_up_quotient(rows, chunk_rows) * strips,
                                                Functor::threads * width * sizeof(A)},
               Functor{output_gradient.data(), begins.data(), ends.data(), source.data(), weights.data(),
                       workspace.data(), experts, columns, strips});
      },
      output_gradient.data(), workspace.data());
  using Join = JoinChunks<A, G>;
  const std::int64_t strips = host ? 1 : impl::rounded_up_quotient(columns, Join::strip_columns);
  launch(
      stream, "expert_bias/backward/sum",
      {backend::read(workspace), backend::read(begins), backend::read(ends), backend::write(bias_gradient)},
      backend::Teams<Join::threads>{experts * strips, Join::threads * sizeof(A)},
      Join{workspace.data(), begins.data(), ends.data(), bias_gradient.data(), columns, strips, accumulate});
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                          \
  template void expert_bias_backward<SPACE, T, G>(                               \
      Stream<SPACE>&, Matrix<const T, SPACE>, Vector<const std::int32_t, SPACE>, \
      Vector<const std::int32_t, SPACE>, Vector<const std::int32_t, SPACE>,      \
      Matrix<const Accumulator<T>, SPACE>, Matrix<G, SPACE>, Matrix<Accumulator<T>, SPACE>, bool);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
