// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/normalization.hpp>

#include "column_sum.hpp"
#include "normalization_backward_rows.hpp"

namespace encore::kernels {

namespace {

template <class T>
using Operands = impl::NormalizationGradient<T>;

template <bool Centered, class T>
struct GeneralBackward {
  using A = Accumulator<T>;
  Operands<T> of;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t share = team.league_rank();
    A* weight_sums = of.weight_partials + share * of.hidden;
    A* bias_sums = Centered ? of.bias_partials + share * of.hidden : nullptr;
    team.for_each(of.hidden, [&](std::int64_t i) {
      weight_sums[i] = 0;
      if constexpr (Centered) bias_sums[i] = 0;
    });
    const std::int64_t begin = of.tokens * share / of.shares, end = of.tokens * (share + 1) / of.shares;
    for (std::int64_t row = begin; row < end; ++row) {
      if (of.residual_gradient == nullptr)
        do_row<false>(team, row, weight_sums, bias_sums);
      else
        do_row<true>(team, row, weight_sums, bias_sums);
    }
  }

 private:
  template <bool Residual, class Team>
  KOKKOS_FUNCTION void do_row(const Team& team, std::int64_t row, A* weight_sums, A* bias_sums) const {
    const std::int64_t hidden = of.hidden;
    const T* input = of.input + row * hidden;
    const T* weight = of.weight;
    const T* output_gradient = of.output_gradient + row * hidden;
    const T* residual_gradient = Residual ? of.residual_gradient + row * hidden : nullptr;
    T* input_gradient = of.input_gradient + row * hidden;
    const A mean = Centered ? of.mean[row] : A(0);
    const A inverse = of.inverse[row];
    const auto normalized = [=](std::int64_t i) { return (static_cast<A>(input[i]) - mean) * inverse; };
    const auto scaled = [=](std::int64_t i) {
      return static_cast<A>(output_gradient[i]) * static_cast<A>(weight[i]);
    };
    A mean_gradient(0);
    if constexpr (Centered)
      mean_gradient = team.template sum_over<A>(hidden, scaled) / static_cast<A>(hidden);
    const A projection = team.template sum_over<A>(hidden, [&](std::int64_t i) {
      return scaled(i) * normalized(i);
    }) / static_cast<A>(hidden);
    team.for_each(hidden, [&](std::int64_t i) {
      const A n = normalized(i), gradient = static_cast<A>(output_gradient[i]);
      A result = inverse * (gradient * static_cast<A>(weight[i]) - mean_gradient - n * projection);
      if constexpr (Residual) result += static_cast<A>(residual_gradient[i]);
      weight_sums[i] += gradient * n;
      if constexpr (Centered) bias_sums[i] += gradient;
      input_gradient[i] = static_cast<T>(result);
    });
  }
};

constexpr std::int64_t multiprocessors = 132;  // Of an H100 or H200.
constexpr std::int64_t most_shares = 6 * multiprocessors;
/// Beyond them not all rows can be worked on at once in registers.
constexpr std::int64_t rows_at_once = 8 * multiprocessors;
/// On hosts a share has at least 8 rows, so that the partial sums are a small part of the traffic.
constexpr std::int64_t host_shares = 256, host_rows = 8;

std::int64_t shares_of(std::int64_t tokens, std::int64_t most, std::int64_t rows) {
  const std::int64_t shares = tokens / rows;
  return shares < 1 ? 1 : shares < most ? shares : most;
}

template <bool Centered, class Space, class T, class G>
void normalize_backward(Stream<Space>& stream, const char* label, const char* sum_label, Operands<T> of,
                        G* weight_gradient, G* bias_gradient, bool accumulate) {
  const std::int64_t entries = of.tokens * of.hidden;
  const auto queue = [&](auto teams, const auto& functor) {
    launch(stream, label,
           {backend::read(of.input, entries), backend::read(of.weight, of.hidden),
            backend::read(of.mean, Centered ? of.tokens : 0), backend::read(of.inverse, of.tokens),
            backend::read(of.output_gradient, entries),
            backend::read(of.residual_gradient, of.residual_gradient == nullptr ? 0 : entries),
            backend::write(of.input_gradient, entries),
            backend::write(of.weight_partials, of.shares * of.hidden),
            backend::write(of.bias_partials, Centered ? of.shares * of.hidden : 0)},
           teams, functor);
  };
  using impl::RowTeam;
  const auto queue_rows = [&](auto functor, auto threads, std::size_t scratch_bytes, std::int64_t most,
                              std::int64_t rows) {
    functor.of.share_out(shares_of(of.tokens, most, rows));
    of.shares = functor.of.shares;
    queue(backend::Teams<threads>{of.shares, scratch_bytes}, functor);
  };
  const bool done = impl::with_row_team<Space, T, RowTeam<128, 32, 1>, RowTeam<128, 32, 2>,
                                        RowTeam<128, 32, 3>, RowTeam<128, 32, 4>, RowTeam<256, 256, 1>,
                                        RowTeam<512, 512, 1>, RowTeam<512, 512, 2>>(
      of.hidden,
      [&](auto rows) {
        using Rows = decltype(rows);
        // As many teams as have room on the multiprocessors at once, by their registers.
        const auto together = [&](auto threads) {
          constexpr int teams = threads <= 96 ? 6 : threads <= 128 ? 5 : threads <= 256 ? 3 : 1;
          using Functor = impl::TogetherBackward<Centered, T, threads, 2>;
          queue_rows(Functor{of}, threads, Functor::scratch_bytes, teams * multiprocessors, 1);
        };
        constexpr bool whole_team = Rows::lanes == Rows::threads && Rows::packets == 1;
        constexpr auto threads = impl::WidthConstant<Rows::threads>{};
        if constexpr (whole_team) {
          together(threads);
        } else {
          if constexpr (Rows::lanes == 32 && Rows::packets > 2)
            if (of.tokens > rows_at_once) return together(impl::WidthConstant<Rows::packets * Rows::lanes>{});
          using Functor = impl::RegisterBackward<Centered, T, Rows>;
          queue_rows(Functor{of}, threads, Functor::scratch_bytes(of.hidden), 4 * multiprocessors,
                     Rows::rows);
        }
      },
      of.input, of.weight, of.output_gradient, of.residual_gradient, of.input_gradient, of.weight_partials,
      of.bias_partials);
  if (!done) {
    of.shares = backend::is_host_space<Space> ? shares_of(of.tokens, host_shares, host_rows)
                                              : shares_of(of.tokens, most_shares, 1);
    queue(backend::Teams<impl::general_row_threads>{of.shares}, GeneralBackward<Centered, T>{of});
  }
  impl::column_sum<Space, Accumulator<T>, G>(stream, sum_label, of.shares, of.hidden, accumulate,
                                             {of.weight_partials, weight_gradient},
                                             {of.bias_partials, bias_gradient});
}

}  // namespace

std::int64_t normalization_workspace_rows(std::int64_t tokens, std::int64_t) {
  return shares_of(tokens, most_shares, 1);
}

template <class Space, class T, class G>
void rms_norm_backward(Stream<Space>& stream, Matrix<const T, Space> input, Vector<const T, Space> weight,
                       Vector<const Accumulator<T>, Space> inverse_rms,
                       Matrix<const T, Space> output_gradient, Matrix<const T, Space> residual_gradient,
                       Matrix<T, Space> input_gradient, Vector<G, Space> weight_gradient,
                       Matrix<Accumulator<T>, Space> workspace, bool accumulate) {
  const std::int64_t tokens = impl::rows_of(input), hidden = impl::columns_of(input);
  impl::require_shape(
      impl::is_matrix(input, tokens, hidden) && impl::is_matrix(output_gradient, tokens, hidden) &&
          (impl::is_empty(residual_gradient) || impl::is_matrix(residual_gradient, tokens, hidden)) &&
          impl::is_matrix(input_gradient, tokens, hidden) && impl::is_vector(weight, hidden) &&
          impl::is_vector(weight_gradient, hidden) && impl::is_vector(inverse_rms, tokens),
      "rms_norm_backward: input and gradients must be [tokens, hidden], weight and its gradient [hidden], "
      "inverse_rms [tokens]");
  impl::require_shape(
      impl::has_rows(workspace, normalization_workspace_rows(tokens, hidden), hidden),
      "rms_norm_backward: the workspace must be [normalization_workspace_rows(tokens, hidden), "
      "hidden]");
  normalize_backward<false>(
      stream, "rms_norm/backward", "rms_norm/backward/sum",
      Operands<T>{input.data(), weight.data(), nullptr, inverse_rms.data(), output_gradient.data(),
                  residual_gradient.data(), input_gradient.data(), workspace.data(), nullptr, tokens, hidden},
      weight_gradient.data(), static_cast<G*>(nullptr), accumulate);
}

template <class Space, class T, class G>
void layer_norm_backward(Stream<Space>& stream, Matrix<const T, Space> input, Vector<const T, Space> weight,
                         Vector<const Accumulator<T>, Space> mean,
                         Vector<const Accumulator<T>, Space> inverse_std,
                         Matrix<const T, Space> output_gradient, Matrix<const T, Space> residual_gradient,
                         Matrix<T, Space> input_gradient, Vector<G, Space> weight_gradient,
                         Vector<G, Space> bias_gradient, Matrix<Accumulator<T>, Space> workspace,
                         bool accumulate) {
  const std::int64_t tokens = impl::rows_of(input), hidden = impl::columns_of(input);
  impl::require_shape(
      impl::is_matrix(input, tokens, hidden) && impl::is_matrix(output_gradient, tokens, hidden) &&
          (impl::is_empty(residual_gradient) || impl::is_matrix(residual_gradient, tokens, hidden)) &&
          impl::is_matrix(input_gradient, tokens, hidden) && impl::is_vector(weight, hidden) &&
          impl::is_vector(weight_gradient, hidden) &&
          (impl::is_empty(bias_gradient) || impl::is_vector(bias_gradient, hidden)) &&
          impl::is_vector(mean, tokens) && impl::is_vector(inverse_std, tokens),
      "layer_norm_backward: input and gradients must be [tokens, hidden], weight, its gradient and "
      "bias_gradient [hidden], mean and inverse_std [tokens]");
  impl::require_shape(impl::has_rows(workspace, 2 * normalization_workspace_rows(tokens, hidden), hidden),
                      "layer_norm_backward: the workspace must be [2 * normalization_workspace_rows(tokens, "
                      "hidden), hidden]");
  normalize_backward<true>(
      stream, "layer_norm/backward", "layer_norm/backward/sum",
      Operands<T>{input.data(), weight.data(), mean.data(), inverse_std.data(), output_gradient.data(),
                  residual_gradient.data(), input_gradient.data(), workspace.data(),
                  workspace.data() + normalization_workspace_rows(tokens, hidden) * hidden, tokens, hidden},
      weight_gradient.data(), bias_gradient.data(), accumulate);
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                      \
  template void rms_norm_backward<SPACE, T, G>(                                                              \
      Stream<SPACE>&, Matrix<const T, SPACE>, Vector<const T, SPACE>, Vector<const Accumulator<T>, SPACE>,   \
      Matrix<const T, SPACE>, Matrix<const T, SPACE>, Matrix<T, SPACE>, Vector<G, SPACE>,                    \
      Matrix<Accumulator<T>, SPACE>, bool);                                                                  \
  template void layer_norm_backward<SPACE, T, G>(                                                            \
      Stream<SPACE>&, Matrix<const T, SPACE>, Vector<const T, SPACE>, Vector<const Accumulator<T>, SPACE>,   \
      Vector<const Accumulator<T>, SPACE>, Matrix<const T, SPACE>, Matrix<const T, SPACE>, Matrix<T, SPACE>, \
      Vector<G, SPACE>, Vector<G, SPACE>, Matrix<Accumulator<T>, SPACE>, bool);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
