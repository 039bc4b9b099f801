// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/normalization.hpp>

#include "normalization_shape.hpp"

namespace encore::kernels {

namespace {

/// What both kernels below work on; the mean is left out (RMS norm) unless `Centered` (layer norm).
template <class T>
struct Operands {
  const T* input;
  const T* weight;
  const T* bias;
  T* output;
  Accumulator<T>* mean;
  Accumulator<T>* inverse;
  std::int64_t hidden;
  Accumulator<T> epsilon;
};

template <bool Centered, class T>
struct GeneralForward {
  Operands<T> of;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    using A = Accumulator<T>;
    const std::int64_t hidden = of.hidden;
    const T* input = of.input + team.league_rank() * hidden;
    const T* weight = of.weight;
    const T* bias = of.bias;
    T* output = of.output + team.league_rank() * hidden;
    A mean(0);
    if constexpr (Centered) {
      mean = team.template sum_over<A>(hidden, [&](std::int64_t i) { return static_cast<A>(input[i]); }) /
             hidden;
    }
    const A variance = team.template sum_over<A>(hidden, [&](std::int64_t i) {
      const A x = static_cast<A>(input[i]) - mean;
      return x * x;
    }) / hidden;
    const A inverse = 1 / Kokkos::sqrt(variance + of.epsilon);
    if (team.rank() == 0) {
      if constexpr (Centered) of.mean[team.league_rank()] = mean;
      of.inverse[team.league_rank()] = inverse;
    }
    if (bias == nullptr) {
      team.for_each(hidden, [&](std::int64_t i) {
        output[i] = static_cast<T>((static_cast<A>(input[i]) - mean) * inverse * static_cast<A>(weight[i]));
      });
    } else {
      team.for_each(hidden, [&](std::int64_t i) {
        output[i] = static_cast<T>((static_cast<A>(input[i]) - mean) * inverse * static_cast<A>(weight[i]) +
                                   static_cast<A>(bias[i]));
      });
    }
  }
};

/// The rows stay in registers, so that they are read from memory once; all loads of a row are under way together.
template <bool Centered, class T, class Rows>
struct RegisterForward {
  using A = Accumulator<T>;
  static constexpr int width = backend::packet_width<T>;
  using P = backend::Packet<T, width>;

  Operands<T> of;
  std::int64_t tokens;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t row = team.league_rank() * Rows::rows + team.rank() / Rows::lanes;
    if (row >= tokens) return;
    const int lane = team.rank() % Rows::lanes, packets = static_cast<int>(of.hidden / width);
    const std::int64_t begin = row * of.hidden;
    P x[Rows::packets], weight[Rows::packets];
    for (int k = 0; k < Rows::packets; ++k) {
      const int packet = lane + k * Rows::lanes;
      if (packet < packets) x[k] = backend::load_packet<width>(of.input + begin, packet);
    }
    for (int k = 0; k < Rows::packets; ++k) {
      const int packet = lane + k * Rows::lanes;
      if (packet < packets) weight[k] = backend::load_packet<width>(of.weight, packet);
    }
    A mean(0);
    if constexpr (Centered) {
      A total(0);
      for (int k = 0; k < Rows::packets; ++k)
        if (lane + k * Rows::lanes < packets)
          for (int i = 0; i < width; ++i) total += static_cast<A>(x[k][i]);
      mean = Rows::sum(team, total) / static_cast<A>(of.hidden);
    }
    A squares(0);
    for (int k = 0; k < Rows::packets; ++k)
      if (lane + k * Rows::lanes < packets)
        for (int i = 0; i < width; ++i) {
          const A centered = static_cast<A>(x[k][i]) - mean;
          squares += centered * centered;
        }
    const A inverse = 1 / Kokkos::sqrt(Rows::sum(team, squares) / static_cast<A>(of.hidden) + of.epsilon);
    impl::keep_packed(x);
    if (lane == 0) {
      if constexpr (Centered) of.mean[row] = mean;
      of.inverse[row] = inverse;
    }
    for (int k = 0; k < Rows::packets; ++k) {
      const int packet = lane + k * Rows::lanes;
      if (packet >= packets) continue;
      P bias = {}, result;
      if (Centered && of.bias != nullptr) bias = backend::load_packet<width>(of.bias, packet);
      for (int i = 0; i < width; ++i)
        result[i] = static_cast<T>((static_cast<A>(x[k][i]) - mean) * inverse * static_cast<A>(weight[k][i]) +
                                   static_cast<A>(bias[i]));
      backend::store_packet(of.output + begin, packet, result);
    }
  }
};

template <bool Centered, class Space, class T>
void normalize(Stream<Space>& stream, const char* label, std::int64_t tokens, const Operands<T>& of) {
  const std::int64_t hidden = of.hidden, entries = tokens * hidden;
  const std::int64_t statistics = Centered ? tokens : 0;
  const std::int64_t biases = of.bias == nullptr ? 0 : hidden;
  const auto queue = [&](auto teams, const auto& functor) {
    launch(stream, label,
           {backend::read(of.input, entries), backend::read(of.weight, hidden),
            backend::read(of.bias, biases), backend::write(of.output, entries),
            backend::write(of.mean, statistics), backend::write(of.inverse, tokens)},
           teams, functor);
  };
  using impl::RowTeam;
  const bool done = impl::with_row_team<Space, T, RowTeam<128, 32, 1>, RowTeam<128, 32, 2>,
                                        RowTeam<128, 32, 3>, RowTeam<128, 32, 4>, RowTeam<128, 32, 8>,
                                        RowTeam<128, 128, 4>, RowTeam<512, 512, 4>>(
      hidden,
      [&](auto rows) {
        using Rows = decltype(rows);
        queue(backend::Teams<Rows::threads>{impl::rounded_up_quotient(tokens, Rows::rows)},
              RegisterForward<Centered, T, Rows>{of, tokens});
      },
      of.input, of.weight, of.bias, of.output);
  if (!done) queue(backend::Teams<impl::general_row_threads>{tokens}, GeneralForward<Centered, T>{of});
}

}  // namespace

template <class Space, class T>
void rms_norm_forward(Stream<Space>& stream, Matrix<const T, Space> input, Vector<const T, Space> weight,
                      Matrix<T, Space> output, Vector<Accumulator<T>, Space> inverse_rms, double epsilon) {
  const std::int64_t tokens = impl::rows_of(input), hidden = impl::columns_of(input);
  impl::require_shape(impl::is_matrix(input, tokens, hidden) && impl::is_matrix(output, tokens, hidden) &&
                          impl::is_vector(weight, hidden) && impl::is_vector(inverse_rms, tokens),
                      "rms_norm_forward: input and output must be [tokens, hidden], weight [hidden] and "
                      "inverse_rms [tokens]");
  normalize<false>(stream, "rms_norm/forward", tokens,
                   Operands<T>{input.data(), weight.data(), nullptr, output.data(), nullptr,
                               inverse_rms.data(), hidden, static_cast<Accumulator<T>>(epsilon)});
}

template <class Space, class T>
void layer_norm_forward(Stream<Space>& stream, Matrix<const T, Space> input, Vector<const T, Space> weight,
                        Vector<const T, Space> bias, Matrix<T, Space> output,
                        Vector<Accumulator<T>, Space> mean, Vector<Accumulator<T>, Space> inverse_std,
                        double epsilon) {
  const std::int64_t tokens = impl::rows_of(input), hidden = impl::columns_of(input);
  impl::require_shape(
      impl::is_matrix(input, tokens, hidden) && impl::is_matrix(output, tokens, hidden) &&
          impl::is_vector(weight, hidden) && impl::is_vector(mean, tokens) &&
          impl::is_vector(inverse_std, tokens) && (impl::is_empty(bias) || impl::is_vector(bias, hidden)),
      "layer_norm_forward: input and output must be [tokens, hidden], weight and bias [hidden], "
      "mean and inverse_std [tokens]");
  normalize<true>(stream, "layer_norm/forward", tokens,
                  Operands<T>{input.data(), weight.data(), bias.data(), output.data(), mean.data(),
                              inverse_std.data(), hidden, static_cast<Accumulator<T>>(epsilon)});
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                       \
  template void rms_norm_forward<SPACE, T>(Stream<SPACE>&, Matrix<const T, SPACE>, Vector<const T, SPACE>, \
                                           Matrix<T, SPACE>, Vector<Accumulator<T>, SPACE>, double);       \
  template void layer_norm_forward<SPACE, T>(                                                              \
      Stream<SPACE>&, Matrix<const T, SPACE>, Vector<const T, SPACE>, Vector<const T, SPACE>,              \
      Matrix<T, SPACE>, Vector<Accumulator<T>, SPACE>, Vector<Accumulator<T>, SPACE>, double);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
