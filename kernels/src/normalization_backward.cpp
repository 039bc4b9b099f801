// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/normalization.hpp>

#include "column_sum.hpp"
#include "normalization_shape.hpp"
#include "store_sums.hpp"

namespace encore::kernels {

namespace {

/// What both kernels below work on. A team takes one share of the rows and leaves its sums for the gradients
/// of weight and bias in one row of the partials. normalize_backward says how many shares there are.
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

/// Rows and the sums of the weight's gradient stay in registers; all loads of a row are under way together.
template <bool Centered, class T, class Rows, bool Ahead>
struct RegisterBackward {
  using A = Accumulator<T>;
  static constexpr int width = backend::packet_width<T>;
  using P = backend::Packet<T, width>;

  Operands<T> of;

  /// Where the sums of a team's rows meet.
  static std::size_t scratch_bytes(std::int64_t hidden) {
    return Rows::rows == 1 ? 0 : Rows::rows * static_cast<std::size_t>(hidden) * sizeof(A);
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const int lane = team.rank() % Rows::lanes, packets = static_cast<int>(of.hidden / width);
    const std::int64_t share = team.league_rank(), end = of.first_row(share + 1);
    P weight[Rows::packets];
    for (int k = 0; k < Rows::packets; ++k)
      if (lane + k * Rows::lanes < packets)
        weight[k] = backend::load_packet<width>(of.weight, lane + k * Rows::lanes);
    A weight_sums[Rows::packets][width] = {};
    A bias_sums[Centered ? Rows::packets : 1][width] = {};
    Row next;
    std::int64_t row = of.first_row(share) + team.rank() / Rows::lanes;
    if constexpr (Ahead) next = load(row, end, lane, packets);
    for (; row < end; row += Rows::rows) {
      Row now;
      if constexpr (Ahead) {
        now = next;
        next = load(row + Rows::rows, end, lane, packets);
      } else {
        now = load(row, end, lane, packets);
      }
      impl::keep_packed(weight);
      A gradient_total(0), projection_total(0);
      for (int k = 0; k < Rows::packets; ++k) {
        if (lane + k * Rows::lanes >= packets) continue;
        for (int i = 0; i < width; ++i) {
          const A n = (static_cast<A>(now.input[k][i]) - now.mean) * now.inverse;
          const A g = static_cast<A>(now.gradient[k][i]), scaled = g * static_cast<A>(weight[k][i]);
          gradient_total += scaled;
          projection_total += scaled * n;
          weight_sums[k][i] += g * n;
          if constexpr (Centered) bias_sums[k][i] += g;
        }
      }
      const A hidden = static_cast<A>(of.hidden);
      const A mean_gradient = Centered ? Rows::sum(team, gradient_total) / hidden : A(0);
      const A projection = Rows::sum(team, projection_total) / hidden;
      impl::keep_packed(now.input);
      impl::keep_packed(now.gradient);
      impl::keep_packed(weight);
      for (int k = 0; k < Rows::packets; ++k) {
        const int packet = lane + k * Rows::lanes;
        if (packet >= packets) continue;
        P result;
        for (int i = 0; i < width; ++i) {
          const A n = (static_cast<A>(now.input[k][i]) - now.mean) * now.inverse;
          const A scaled = static_cast<A>(now.gradient[k][i]) * static_cast<A>(weight[k][i]);
          result[i] = static_cast<T>(now.inverse * (scaled - mean_gradient - n * projection) +
                                     static_cast<A>(now.residual[k][i]));
        }
        backend::store_packet(of.input_gradient + row * of.hidden, packet, result);
      }
    }
    store(team, weight_sums, of.weight_partials + share * of.hidden);
    if constexpr (Centered) {
      team.barrier();
      store(team, bias_sums, of.bias_partials + share * of.hidden);
    }
  }

 private:
  struct Row {
    P input[Rows::packets], gradient[Rows::packets], residual[Rows::packets];
    A mean, inverse;
  };

  KOKKOS_FUNCTION Row load(std::int64_t row, std::int64_t end, int lane, int packets) const {
    Row into = {};
    if (row >= end) return into;
    const std::int64_t begin = row * of.hidden;
    for (int k = 0; k < Rows::packets; ++k) {
      const int packet = lane + k * Rows::lanes;
      if (packet >= packets) continue;
      into.input[k] = backend::load_packet<width>(of.input + begin, packet);
      into.gradient[k] = backend::load_packet<width>(of.output_gradient + begin, packet);
      if (of.residual_gradient != nullptr)
        into.residual[k] = backend::load_packet<width>(of.residual_gradient + begin, packet);
    }
    into.mean = Centered ? of.mean[row] : A(0);
    into.inverse = of.inverse[row];
    return into;
  }

  /// Adds up the sums of the team's rows, in their order, and puts the result into a row of the partials.
  template <class Team>
  KOKKOS_FUNCTION void store(const Team& team, const A (&sums)[Rows::packets][width], A* partials) const {
    constexpr int part = backend::packet_width<A>;
    const int hidden = static_cast<int>(of.hidden), lane = team.rank() % Rows::lanes;
    A* gathered = team.template scratch<A>();
    A* own = Rows::rows == 1 ? partials : gathered + team.rank() / Rows::lanes * hidden;
    for (int k = 0; k < Rows::packets; ++k) {
      const int begin = (lane + k * Rows::lanes) * width;
      if (begin < hidden) impl::store_sums<width>(own + begin, sums[k], false);
    }
    if constexpr (Rows::rows > 1) {
      team.barrier();
      team.for_each(hidden / part, [=](std::int64_t p) {
        auto total = backend::load_packet<part>(gathered, p);
        for (int row = 1; row < Rows::rows; ++row) {
          const auto more = backend::load_packet<part>(gathered + row * hidden, p);
          for (int i = 0; i < part; ++i) total[i] += more[i];
        }
        backend::store_packet(partials, p, total);
      });
    }
  }
};

/// Rows of partial sums that the kernels of a space fill. On hosts a share has at least 8 rows, so that the
/// partials are a small part of the traffic; on a GPU there is a team for each of `teams`, which all run at once, unless
/// there are fewer rows than they work on at a time.
std::int64_t shares_of(std::int64_t tokens, std::int64_t teams, std::int64_t rows_at_a_time) {
  const std::int64_t shares = tokens / rows_at_a_time;
  return shares < 1 ? 1 : shares < teams ? shares : teams;
}

constexpr std::int64_t multiprocessors = 132;  // Of an H100 or H200.

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
  const bool done = impl::with_row_team<Space, T, RowTeam<128, 32, 1>, RowTeam<128, 32, 2>,
                                        RowTeam<128, 32, 3>, RowTeam<128, 32, 4>, RowTeam<256, 256, 1>,
                                        RowTeam<512, 512, 1>, RowTeam<512, 512, 2>>(
      of.hidden,
      [&](auto rows) {
        using Rows = decltype(rows);
        using Functor = RegisterBackward<Centered, T, Rows, Rows::lanes == Rows::threads>;
        of.shares = shares_of(of.tokens, 4 * multiprocessors, Rows::rows);
        queue(backend::Teams<Rows::threads>{of.shares, Functor::scratch_bytes(of.hidden)}, Functor{of});
      },
      of.input, of.weight, of.output_gradient, of.residual_gradient, of.input_gradient, of.weight_partials,
      of.bias_partials);
  if (!done) {
    of.shares = backend::is_host_space<Space> ? shares_of(of.tokens, 256, 8)
                                              : shares_of(of.tokens, 4 * multiprocessors, 1);
    queue(backend::Teams<impl::general_row_threads>{of.shares}, GeneralBackward<Centered, T>{of});
  }
  impl::column_sum<Space, Accumulator<T>, G>(stream, sum_label, of.shares, of.hidden, accumulate,
                                             {of.weight_partials, weight_gradient},
                                             {of.bias_partials, bias_gradient});
}

}  // namespace

std::int64_t normalization_workspace_rows(std::int64_t tokens, std::int64_t) {
  return shares_of(tokens, 4 * multiprocessors, 1);
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
  normalize_backward<false>(stream, "rms_norm/backward", "rms_norm/backward/sum",
                            Operands<T>{input.data(), weight.data(), nullptr, inverse_rms.data(),
                                        output_gradient.data(), residual_gradient.data(),
                                        input_gradient.data(), workspace.data(), nullptr, 0, tokens, hidden},
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
                  workspace.data() + normalization_workspace_rows(tokens, hidden) * hidden, 0, tokens,
                  hidden},
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
