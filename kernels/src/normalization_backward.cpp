// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/normalization.hpp>

#include "column_sum.hpp"
#include "normalization_shape.hpp"
#include "store_sums.hpp"

namespace encore::kernels {

namespace {

/// What both kernels below work on. A team takes one share of the rows and leaves its sums for the gradients
/// of weight and bias in one row of the partials.
template <class T>
struct Operands {
  using A = Accumulator<T>;
  const T* input;
  const T* weight;
  const A* mean;
  const A* inverse;
  const T* output_gradient;
  const T* residual_gradient;
  T* input_gradient;
  A* weight_partials;
  A* bias_partials;
  std::int64_t shares, tokens, hidden;

  KOKKOS_FUNCTION std::int64_t first_row(std::int64_t share) const { return tokens * share / shares; }
};

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
    for (std::int64_t row = of.first_row(share); row < of.first_row(share + 1); ++row) {
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

/// Rows, the next row and the sums stay in registers.
template <bool Centered, class T, int Packets>
struct RegisterBackward {
  using A = Accumulator<T>;
  static constexpr int width = backend::packet_width<T>;
  using P = backend::Packet<T, width>;

  Operands<T> of;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const int packets = static_cast<int>(of.hidden / width);
    const std::int64_t share = team.league_rank(), end = of.first_row(share + 1);
    A weight_sums[Packets][width] = {};
    A bias_sums[Centered ? Packets : 1][width] = {};
    P next_x[Packets], next_gradient[Packets];
    std::int64_t row = of.first_row(share);
    load_row(team, row, end, packets, next_x, next_gradient);
    for (; row < end; ++row) {
      P x[Packets], gradient[Packets];
      for (int k = 0; k < Packets; ++k) {
        x[k] = next_x[k];
        gradient[k] = next_gradient[k];
      }
      // Queued before this row's reductions, whose latency it hides.
      load_row(team, row + 1, end, packets, next_x, next_gradient);
      const A mean = Centered ? of.mean[row] : A(0);
      const A inverse = of.inverse[row];
      A gradient_total(0), projection_total(0);
      for (int k = 0; k < Packets; ++k) {
        const int packet = team.rank() + k * team.size();
        if (packet >= packets) continue;
        const P weight = backend::load_packet<width>(of.weight, packet);
        for (int i = 0; i < width; ++i) {
          const A n = (static_cast<A>(x[k][i]) - mean) * inverse, g = static_cast<A>(gradient[k][i]);
          const A scaled = g * static_cast<A>(weight[i]);
          gradient_total += scaled;
          projection_total += scaled * n;
          weight_sums[k][i] += g * n;
          if constexpr (Centered) bias_sums[k][i] += g;
        }
      }
      const A hidden = static_cast<A>(of.hidden);
      const A mean_gradient = Centered ? team.sum(gradient_total) / hidden : A(0);
      const A projection = team.sum(projection_total) / hidden;
      const std::int64_t begin = row * of.hidden;
      for (int k = 0; k < Packets; ++k) {
        const int packet = team.rank() + k * team.size();
        if (packet >= packets) continue;
        const P weight = backend::load_packet<width>(of.weight, packet);
        P residual = {}, result;
        if (of.residual_gradient != nullptr)
          residual = backend::load_packet<width>(of.residual_gradient + begin, packet);
        for (int i = 0; i < width; ++i) {
          const A n = (static_cast<A>(x[k][i]) - mean) * inverse, g = static_cast<A>(gradient[k][i]);
          result[i] =
              static_cast<T>(inverse * (g * static_cast<A>(weight[i]) - mean_gradient - n * projection) +
                             static_cast<A>(residual[i]));
        }
        backend::store_packet(of.input_gradient + begin, packet, result);
      }
    }
    for (int k = 0; k < Packets; ++k) {
      const int packet = team.rank() + k * team.size();
      if (packet >= packets) continue;
      impl::store_sums<width>(of.weight_partials + share * of.hidden + packet * width, weight_sums[k], false);
      if constexpr (Centered)
        impl::store_sums<width>(of.bias_partials + share * of.hidden + packet * width, bias_sums[k], false);
    }
  }

 private:
  template <class Team>
  KOKKOS_FUNCTION void load_row(const Team& team, std::int64_t row, std::int64_t end, int packets,
                                P (&x)[Packets], P (&gradient)[Packets]) const {
    if (row >= end) return;
    for (int k = 0; k < Packets; ++k) {
      const int packet = team.rank() + k * team.size();
      if (packet >= packets) continue;
      x[k] = backend::load_packet<width>(of.input + row * of.hidden, packet);
      gradient[k] = backend::load_packet<width>(of.output_gradient + row * of.hidden, packet);
    }
  }
};

/// Rows of partial sums that the kernels of a space fill. On hosts a share has at least 8 rows, so that the
/// partials are a small part of the traffic.
template <class Space>
std::int64_t shares_of(std::int64_t tokens, std::int64_t hidden) {
  const std::int64_t most = normalization_workspace_rows(tokens, hidden);
  if constexpr (!backend::is_host_space<Space>) return most;
  const std::int64_t shares = tokens / 8 < 256 ? tokens / 8 : 256;
  return shares < 1 ? 1 : shares < most ? shares : most;
}

template <bool Centered, class Space, class T, class G>
void normalize_backward(Stream<Space>& stream, const char* label, const char* sum_label,
                        const Operands<T>& of, G* weight_gradient, G* bias_gradient, bool accumulate) {
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
  const bool done =
      impl::with_row_team<Space, T, RowTeam<128, 1>, RowTeam<256, 1>, RowTeam<512, 1>, RowTeam<512, 2>>(
          of.hidden,
          [&](auto row) {
            queue(backend::Teams<row.threads>{of.shares}, RegisterBackward<Centered, T, row.packets>{of});
          },
          of.input, of.weight, of.output_gradient, of.residual_gradient, of.input_gradient,
          of.weight_partials, of.bias_partials);
  if (!done) queue(backend::Teams<impl::general_row_threads>{of.shares}, GeneralBackward<Centered, T>{of});
  impl::column_sum<Space, Accumulator<T>, G>(stream, sum_label, of.shares, of.hidden, accumulate,
                                             {of.weight_partials, weight_gradient},
                                             {of.bias_partials, bias_gradient});
}

}  // namespace

std::int64_t normalization_workspace_rows(std::int64_t tokens, std::int64_t) {
  constexpr std::int64_t most = 6 * 132;  // Whole waves of teams on a GPU with 132 multiprocessors.
  const std::int64_t shares = impl::rounded_up_quotient(tokens, 2);
  return shares < 1 ? 1 : shares > most ? most : shares;
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
                  residual_gradient.data(), input_gradient.data(), workspace.data(), nullptr,
                  shares_of<Space>(tokens, hidden), tokens, hidden},
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
  const std::int64_t shares = shares_of<Space>(tokens, hidden);
  normalize_backward<true>(
      stream, "layer_norm/backward", "layer_norm/backward/sum",
      Operands<T>{input.data(), weight.data(), mean.data(), inverse_std.data(), output_gradient.data(),
                  residual_gradient.data(), input_gradient.data(), workspace.data(),
                  workspace.data() + shares * hidden, shares, tokens, hidden},
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
