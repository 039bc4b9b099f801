// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/expert_bias.hpp>

#include "row_packets.hpp"

namespace encore::kernels {

namespace {

template <int Width, class T>
struct AddBias {
  using A = Accumulator<T>;

  const T* bias;
  const std::int32_t* source;
  const A* weights;
  const std::int32_t* experts;
  T* output;
  std::int64_t hidden;

  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t packet) const {
    const std::int32_t pair = source[row];
    if (pair < 0) return;
    const A weight = weights[pair];
    const auto add = backend::load_packet<Width>(bias + experts[pair] * hidden, packet);
    auto value = backend::load_packet<Width>(output + row * hidden, packet);
    for (int i = 0; i < Width; ++i)
      value[i] = static_cast<T>(static_cast<A>(value[i]) + weight * static_cast<A>(add[i]));
    backend::store_packet(output + row * hidden, packet, value);
  }
};

/// One team a row.
template <int Width, class T>
struct BiasProduct {
  using A = Accumulator<T>;

  const T* output_gradient;
  const T* bias;
  const std::int32_t* source;
  const std::int32_t* experts;
  A* weight_gradient;
  std::int64_t hidden;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int32_t pair = source[team.league_rank()];
    if (pair < 0) return;
    const T* gradient = output_gradient + team.league_rank() * hidden;
    const T* factor = bias + experts[pair] * hidden;
    const A product = team.template sum_over<A>(hidden / Width, [=](std::int64_t packet) {
      const auto a = backend::load_packet<Width>(gradient, packet);
      const auto b = backend::load_packet<Width>(factor, packet);
      A sum(0);
      for (int i = 0; i < Width; ++i) sum += static_cast<A>(a[i]) * static_cast<A>(b[i]);
      return sum;
    });
    if (team.rank() == 0) weight_gradient[pair] += product;
  }
};

}  // namespace

template <class Space, class T>
void expert_bias_forward(Stream<Space>& stream, Matrix<const T, Space> bias,
                         Vector<const std::int32_t, Space> source,
                         Matrix<const Accumulator<T>, Space> weights,
                         Matrix<const std::int32_t, Space> experts, Matrix<T, Space> output) {
  const std::int64_t rows = impl::rows_of(output), hidden = impl::columns_of(output);
  impl::require_shape(
      impl::has_rows(bias, 0, hidden) && impl::is_vector(source, rows) &&
          impl::is_matrix(weights, impl::rows_of(experts), impl::columns_of(experts)) &&
          experts.span_is_contiguous() && impl::is_matrix(output, rows, hidden),
      "expert_bias_forward: bias must be [experts, hidden], source [rows], weights and experts [tokens, "
      "topk] where output is [rows, hidden]");
  impl::with_packet_width<Space>(
      hidden,
      [&](auto width) {
        impl::launch_row_packets(stream, "expert_bias/forward",
                                 {backend::read(bias), backend::read(source), backend::read(weights),
                                  backend::read(experts), backend::write(output)},
                                 rows, hidden / width,
                                 AddBias<width, T>{bias.data(), source.data(), weights.data(), experts.data(),
                                                   output.data(), hidden});
      },
      bias.data(), output.data());
}

template <class Space, class T>
void expert_bias_weight_gradient(Stream<Space>& stream, Matrix<const T, Space> output_gradient,
                                 Matrix<const T, Space> bias, Vector<const std::int32_t, Space> source,
                                 Matrix<const std::int32_t, Space> experts,
                                 Matrix<Accumulator<T>, Space> weight_gradient) {
  const std::int64_t rows = impl::rows_of(output_gradient), hidden = impl::columns_of(output_gradient);
  impl::require_shape(
      impl::is_matrix(output_gradient, rows, hidden) && impl::has_rows(bias, 0, hidden) &&
          impl::is_vector(source, rows) && experts.span_is_contiguous() &&
          impl::is_matrix(weight_gradient, impl::rows_of(experts), impl::columns_of(experts)),
      "expert_bias_weight_gradient: bias must be [experts, hidden], source [rows], experts and "
      "weight_gradient [tokens, topk] where output_gradient is [rows, hidden]");
  impl::with_packet_width<Space>(
      hidden,
      [&](auto width) {
        launch(stream, "expert_bias/weight_gradient",
               {backend::read(output_gradient), backend::read(bias), backend::read(source),
                backend::read(experts), backend::write(weight_gradient)},
               backend::Teams<32>{rows},
               BiasProduct<width, T>{output_gradient.data(), bias.data(), source.data(), experts.data(),
                                     weight_gradient.data(), hidden});
      },
      output_gradient.data(), bias.data());
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                     \
  template void expert_bias_forward<SPACE, T>(                                                           \
      Stream<SPACE>&, Matrix<const T, SPACE>, Vector<const std::int32_t, SPACE>,                         \
      Matrix<const Accumulator<T>, SPACE>, Matrix<const std::int32_t, SPACE>, Matrix<T, SPACE>);         \
  template void expert_bias_weight_gradient<SPACE, T>(                                                   \
      Stream<SPACE>&, Matrix<const T, SPACE>, Matrix<const T, SPACE>, Vector<const std::int32_t, SPACE>, \
      Matrix<const std::int32_t, SPACE>, Matrix<Accumulator<T>, SPACE>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
