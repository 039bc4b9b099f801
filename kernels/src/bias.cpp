// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/bias.hpp>

#include "column_sum.hpp"
#include "store_sums.hpp"

namespace encore::kernels {

namespace {

/// First phase: the sum over one share of the rows. On a GPU 32 threads cover a strip of columns and 8 such
/// groups take turns at the rows.
template <int Width, class T>
struct ShareSum {
  using A = Accumulator<T>;

  static constexpr int threads = 256;
  static constexpr int strip_threads = 32;

  const T* input;
  A* partials;
  std::int64_t shares, tokens, columns, strips;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t share = team.league_rank() / strips;
    const std::int64_t begin = tokens * share / shares, end = tokens * (share + 1) / shares;
    A* sums = partials + share * columns;
    if constexpr (impl::is_host_team<Team>)
      sum_on_host(begin, end, sums);
    else
      sum_on_device(team, team.league_rank() - share * strips, begin, end, sums);
  }

 private:
  KOKKOS_FUNCTION void sum_on_host(std::int64_t begin, std::int64_t end, A* sums) const {
    for (std::int64_t c = 0; c < columns; ++c) sums[c] = 0;
    for (std::int64_t row = begin; row < end; ++row) {
      const T* values = input + row * columns;
#pragma GCC ivdep
      for (std::int64_t c = 0; c < columns; ++c) sums[c] += static_cast<A>(values[c]);
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
      std::int64_t row = begin + y;
      for (; row + (unroll - 1) * lanes < end; row += unroll * lanes) {
        backend::Packet<T, Width> value[unroll];
        for (int u = 0; u < unroll; ++u)
          value[u] = backend::load_packet<Width>(input + (row + u * lanes) * columns + column);
        for (int u = 0; u < unroll; ++u)
          for (int i = 0; i < Width; ++i) total[i] += static_cast<A>(value[u][i]);
      }
      for (; row < end; row += lanes) {
        const auto value = backend::load_packet<Width>(input + row * columns + column);
        for (int i = 0; i < Width; ++i) total[i] += static_cast<A>(value[i]);
      }
    }
    A* scratch = team.template scratch<A>();
    for (int i = 0; i < Width; ++i) scratch[i * threads + team.rank()] = total[i];
    team.barrier();
    if (y != 0 || column >= columns) return;
    for (int i = 0; i < Width; ++i)
      for (int lane = 1; lane < lanes; ++lane) total[i] += scratch[i * threads + lane * strip_threads + x];
    impl::store_sums<Width>(sums + column, total, false);
  }
};

}  // namespace

std::int64_t bias_workspace_rows(std::int64_t tokens) {
  constexpr std::int64_t tokens_per_share = 32, most = 128;
  const std::int64_t shares = impl::rounded_up_quotient(tokens, tokens_per_share);
  return shares < 1 ? 1 : shares > most ? most : shares;
}

template <class Space, class T, class G>
void bias_backward(Stream<Space>& stream, Matrix<const T, Space> output_gradient,
                   Vector<G, Space> bias_gradient, Matrix<Accumulator<T>, Space> workspace, bool accumulate) {
  const std::int64_t tokens = impl::rows_of(output_gradient), columns = impl::columns_of(output_gradient);
  const std::int64_t shares = bias_workspace_rows(tokens);
  impl::require_shape(
      impl::is_matrix(output_gradient, tokens, columns) && impl::is_vector(bias_gradient, columns),
      "bias_backward: bias_gradient must have the columns of output_gradient");
  impl::require_shape(impl::has_rows(workspace, shares, columns),
                      "bias_backward: the workspace must be [bias_workspace_rows(tokens), columns]");
  impl::with_width<Space, backend::packet_width<T>>(
      columns,
      [&](auto width) {
        using Functor = ShareSum<width, T>;
        const std::int64_t strips =
            backend::is_host_space<Space>
                ? 1
                : impl::rounded_up_quotient(columns, std::int64_t(width) * Functor::strip_threads);
        launch(stream, "bias/backward/shares", {backend::read(output_gradient), backend::write(workspace)},
               backend::Teams<Functor::threads>{shares * strips,
                                                Functor::threads * width * sizeof(Accumulator<T>)},
               Functor{output_gradient.data(), workspace.data(), shares, tokens, columns, strips});
      },
      output_gradient.data(), workspace.data());
  impl::column_sum<Space, Accumulator<T>, G>(stream, "bias/backward/sum", shares, columns, accumulate,
                                             {workspace.data(), bias_gradient.data()});
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                              \
  template void bias_backward<SPACE, T, G>(Stream<SPACE>&, Matrix<const T, SPACE>, Vector<G, SPACE>, \
                                           Matrix<Accumulator<T>, SPACE>, bool);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
