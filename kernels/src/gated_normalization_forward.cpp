// SPDX-License-Identifier: Apache-2.0
#include "gated_normalization_operands.hpp"

namespace encore::kernels {

namespace {

using impl::Gated;

/// A team takes a stretch of a row.
template <class T>
struct Operands {
  using A = Accumulator<T>;

  Columns<const T> input, gate;
  const T* weight;
  Columns<T> output;
  A* inverse;
  std::int64_t groups, length;
  A epsilon;
};

template <class T>
struct GeneralForward {
  Operands<T> of;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    using A = Accumulator<T>;
    const std::int64_t row = impl::quotient(team.league_rank(), of.groups);
    const std::int64_t begin = (team.league_rank() - row * of.groups) * of.length;
    const T* input = of.input.data + row * of.input.stride + begin;
    const T* gate = of.gate.data + row * of.gate.stride + begin;
    const T* weight = of.weight + begin;
    T* output = of.output.data + row * of.output.stride + begin;
    const auto gated = [=](std::int64_t i) {
      return Gated<A>(static_cast<A>(input[i]), static_cast<A>(gate[i])).value;
    };
    const A squares = team.template sum_over<A>(of.length, [=](std::int64_t i) {
      const A v = gated(i);
      return v * v;
    });
    const A inverse = 1 / Kokkos::sqrt(squares / static_cast<A>(of.length) + of.epsilon);
    if (team.rank() == 0) of.inverse[team.league_rank()] = inverse;
    team.for_each(of.length, [&](std::int64_t i) {
      output[i] = static_cast<T>(gated(i) * inverse * static_cast<A>(weight[i]));
    });
  }
};

template <class T, int Packets>
struct RegisterForward {
  Operands<T> of;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    using A = Accumulator<T>;
    constexpr int width = backend::packet_width<T>;
    const int packets = static_cast<int>(of.length / width);
    const std::int64_t row = impl::quotient(team.league_rank(), of.groups);
    const std::int64_t begin = (team.league_rank() - row * of.groups) * of.length;
    const T* input = of.input.data + row * of.input.stride + begin;
    const T* gate = of.gate.data + row * of.gate.stride + begin;
    backend::Packet<T, width> x[Packets], z[Packets];
    for (int k = 0; k < Packets; ++k) {
      const int packet = team.rank() + k * team.size();
      if (packet >= packets) continue;
      x[k] = backend::load_packet<width>(input, packet);
      z[k] = backend::load_packet<width>(gate, packet);
    }
    A v[Packets][width];
    A squares(0);
    for (int k = 0; k < Packets; ++k)
      if (team.rank() + k * team.size() < packets)
        for (int i = 0; i < width; ++i) {
          v[k][i] = Gated<A>(static_cast<A>(x[k][i]), static_cast<A>(z[k][i])).value;
          squares += v[k][i] * v[k][i];
        }
    const A inverse = 1 / Kokkos::sqrt(team.sum(squares) / static_cast<A>(of.length) + of.epsilon);
    if (team.rank() == 0) of.inverse[team.league_rank()] = inverse;
    for (int k = 0; k < Packets; ++k) {
      const int packet = team.rank() + k * team.size();
      if (packet >= packets) continue;
      const auto weight = backend::load_packet<width>(of.weight + begin, packet);
      backend::Packet<T, width> result;
      for (int i = 0; i < width; ++i)
        result[i] = static_cast<T>(v[k][i] * inverse * static_cast<A>(weight[i]));
      backend::store_packet(of.output.data + row * of.output.stride + begin, packet, result);
    }
  }
};

}  // namespace

template <class Space, class T>
void gated_rms_norm_forward(Stream<Space>& stream, Columns<const T> input, Columns<const T> gate,
                            Vector<const T, Space> weight, Columns<T> output,
                            Matrix<Accumulator<T>, Space> inverse, double epsilon) {
  const std::int64_t rows = input.rows, columns = input.columns, groups = impl::columns_of(inverse);
  impl::require_shape(
      groups > 0 && columns % groups == 0 && impl::have_shape(rows, columns, gate, output) &&
          impl::is_vector(weight, columns) && impl::is_matrix(inverse, rows, groups),
      "gated_rms_norm_forward: input, gate and output must be [rows, columns], weight [columns] "
      "and inverse [rows, groups] with groups that divide the columns");
  const Operands<T> of{input,          gate,   weight.data(),    output,
                       inverse.data(), groups, columns / groups, static_cast<Accumulator<T>>(epsilon)};
  const auto queue = [&](auto teams, const auto& functor) {
    launch(stream, "gated_rms_norm/forward",
           {impl::read(input), impl::read(gate), backend::read(weight), impl::write(output),
            backend::write(inverse)},
           teams, functor);
  };
  using impl::RowTeam;
  const bool done = impl::with_stretch_team<Space, T, RowTeam<32, 32, 4>, RowTeam<128, 128, 2>,
                                            RowTeam<256, 256, 4>, RowTeam<512, 512, 4>>(
      of.length, of.weight,
      [&](auto row) {
        queue(backend::Teams<row.threads>{rows * groups}, RegisterForward<T, row.packets>{of});
      },
      input, gate, output);
  if (!done) queue(backend::Teams<impl::general_row_threads>{rows * groups}, GeneralForward<T>{of});
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                 \
  template void gated_rms_norm_forward<SPACE, T>(Stream<SPACE>&, Columns<const T>, Columns<const T>, \
                                                 Vector<const T, SPACE>, Columns<T>,                 \
                                                 Matrix<Accumulator<T>, SPACE>, double);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
