// SPDX-License-Identifier: Apache-2.0
#include "column_sum.hpp"
#include "gated_normalization_operands.hpp"
#include "store_sums.hpp"

namespace encore::kernels {

namespace {

using impl::Gated;

/// A team takes one stretch of columns in one share of the rows, and leaves its sums for the weight's gradient in
/// the share's row of the partials.
template <class T>
struct Operands {
  using A = Accumulator<T>;

  Columns<const T> input, gate;
  const T* weight;
  const A* inverse;
  Columns<const T> output_gradient;
  Columns<T> input_gradient, gate_gradient;
  A* partials;
  std::int64_t shares, groups, length;

  KOKKOS_FUNCTION std::int64_t first_row(std::int64_t share) const { return input.rows * share / shares; }
};

template <class T>
struct GeneralBackward {
  using A = Accumulator<T>;
  Operands<T> of;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::int64_t share = impl::quotient(team.league_rank(), of.groups);
    const std::int64_t group = team.league_rank() - share * of.groups, begin = group * of.length;
    A* sums = of.partials + share * of.input.columns + begin;
    team.for_each(of.length, [&](std::int64_t i) { sums[i] = 0; });
    for (std::int64_t row = of.first_row(share); row < of.first_row(share + 1); ++row)
      do_row(team, row, begin, of.inverse[row * of.groups + group], sums);
  }

 private:
  template <class Team>
  KOKKOS_FUNCTION void do_row(const Team& team, std::int64_t row, std::int64_t begin, A inverse,
                              A* sums) const {
    const T* input = of.input.data + row * of.input.stride + begin;
    const T* gate = of.gate.data + row * of.gate.stride + begin;
    const T* weight = of.weight + begin;
    const T* output_gradient = of.output_gradient.data + row * of.output_gradient.stride + begin;
    T* input_gradient = of.input_gradient.data + row * of.input_gradient.stride + begin;
    T* gate_gradient = of.gate_gradient.data + row * of.gate_gradient.stride + begin;
    const A projection = team.template sum_over<A>(of.length, [=](std::int64_t i) {
      const A v = Gated<A>(static_cast<A>(input[i]), static_cast<A>(gate[i])).value;
      return static_cast<A>(output_gradient[i]) * static_cast<A>(weight[i]) * v * inverse;
    }) / static_cast<A>(of.length);
    team.for_each(of.length, [&](std::int64_t i) {
      const Gated<A> gated(static_cast<A>(input[i]), static_cast<A>(gate[i]));
      const A n = gated.value * inverse, gradient = static_cast<A>(output_gradient[i]);
      const A e = inverse * (gradient * static_cast<A>(weight[i]) - n * projection);
      sums[i] += gradient * n;
      input_gradient[i] = static_cast<T>(e * gated.of_input);
      gate_gradient[i] = static_cast<T>(e * gated.of_gate);
    });
  }
};

/// The row's operands and the sums stay in registers; the next row's are on their way meanwhile.
template <class T, int Packets>
struct RegisterBackward {
  using A = Accumulator<T>;
  static constexpr int width = backend::packet_width<T>;
  using P = backend::Packet<T, width>;

  Operands<T> of;

  struct Row {
    P input[Packets], gate[Packets], gradient[Packets];
  };

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const int packets = static_cast<int>(of.length / width);
    const std::int64_t share = impl::quotient(team.league_rank(), of.groups);
    const std::int64_t group = team.league_rank() - share * of.groups, begin = group * of.length;
    const std::int64_t end = of.first_row(share + 1);
    P weight[Packets];
    for (int k = 0; k < Packets; ++k)
      if (team.rank() + k * team.size() < packets)
        weight[k] = backend::load_packet<width>(of.weight + begin, team.rank() + k * team.size());
    A sums[Packets][width] = {};
    Row next;
    load(team, of.first_row(share), end, begin, packets, next);
    for (std::int64_t row = of.first_row(share); row < end; ++row) {
      const Row now = next;
      load(team, row + 1, end, begin, packets, next);
      const A inverse = of.inverse[row * of.groups + group];
      A total(0);
      for (int k = 0; k < Packets; ++k) {
        if (team.rank() + k * team.size() >= packets) continue;
        for (int i = 0; i < width; ++i) {
          const A v = Gated<A>(static_cast<A>(now.input[k][i]), static_cast<A>(now.gate[k][i])).value;
          const A product = static_cast<A>(now.gradient[k][i]) * v * inverse;
          sums[k][i] += product;
          total += product * static_cast<A>(weight[k][i]);
        }
      }
      const A projection = team.sum(total) / static_cast<A>(of.length);
      for (int k = 0; k < Packets; ++k) {
        const int packet = team.rank() + k * team.size();
        if (packet >= packets) continue;
        P input_gradient, gate_gradient;
        for (int i = 0; i < width; ++i) {
          const Gated<A> gated(static_cast<A>(now.input[k][i]), static_cast<A>(now.gate[k][i]));
          const A scaled = static_cast<A>(now.gradient[k][i]) * static_cast<A>(weight[k][i]);
          const A e = inverse * (scaled - gated.value * inverse * projection);
          input_gradient[i] = static_cast<T>(e * gated.of_input);
          gate_gradient[i] = static_cast<T>(e * gated.of_gate);
        }
        backend::store_packet(of.input_gradient.data + row * of.input_gradient.stride + begin, packet,
                              input_gradient);
        backend::store_packet(of.gate_gradient.data + row * of.gate_gradient.stride + begin, packet,
                              gate_gradient);
      }
    }
    for (int k = 0; k < Packets; ++k) {
      const int packet = team.rank() + k * team.size();
      if (packet < packets)
        impl::store_sums<width>(of.partials + share * of.input.columns + begin + packet * width, sums[k],
                                false);
    }
  }

 private:
  template <class Team>
  KOKKOS_FUNCTION void load(const Team& team, std::int64_t row, std::int64_t end, std::int64_t begin,
                            int packets, Row& into) const {
    if (row >= end) return;
    for (int k = 0; k < Packets; ++k) {
      const int packet = team.rank() + k * team.size();
      if (packet >= packets) continue;
      into.input[k] = backend::load_packet<width>(of.input.data + row * of.input.stride + begin, packet);
      into.gate[k] = backend::load_packet<width>(of.gate.data + row * of.gate.stride + begin, packet);
      into.gradient[k] = backend::load_packet<width>(
          of.output_gradient.data + row * of.output_gradient.stride + begin, packet);
    }
  }
};

}  // namespace

std::int64_t gated_rms_norm_workspace_rows(std::int64_t rows) {
  constexpr std::int64_t least_rows_of_share = 8,
                         most = 2 * 132;  // Two teams for each multiprocessor of an H200.
  const std::int64_t shares = rows / least_rows_of_share;
  return shares < 1 ? 1 : shares > most ? most : shares;
}

template <class Space, class T, class G>
void gated_rms_norm_backward(Stream<Space>& stream, Columns<const T> input, Columns<const T> gate,
                             Vector<const T, Space> weight, Matrix<const Accumulator<T>, Space> inverse,
                             Columns<const T> output_gradient, Columns<T> input_gradient,
                             Columns<T> gate_gradient, Vector<G, Space> weight_gradient,
                             Matrix<Accumulator<T>, Space> workspace, bool accumulate) {
  const std::int64_t rows = input.rows, columns = input.columns, groups = impl::columns_of(inverse);
  impl::require_shape(
      groups > 0 && columns % groups == 0 &&
          impl::have_shape(rows, columns, gate, output_gradient, input_gradient, gate_gradient) &&
          impl::is_vector(weight, columns) && impl::is_vector(weight_gradient, columns) &&
          impl::is_matrix(inverse, rows, groups),
      "gated_rms_norm_backward: input, gate and all gradients must be [rows, columns], weight and its "
      "gradient "
      "[columns] and inverse [rows, groups] with groups that divide the columns");
  const std::int64_t shares = gated_rms_norm_workspace_rows(rows);
  impl::require_shape(impl::has_rows(workspace, shares, columns),
                      "gated_rms_norm_backward: the workspace must be [gated_rms_norm_workspace_rows(rows), "
                      "columns]");
  const Operands<T> of{input,           gate,           weight.data(),   inverse.data(),
                       output_gradient, input_gradient, gate_gradient,   workspace.data(),
                       shares,          groups,         columns / groups};
  const auto queue = [&](auto teams, const auto& functor) {
    launch(stream, "gated_rms_norm/backward",
           {impl::read(input), impl::read(gate), backend::read(weight), backend::read(inverse),
            impl::read(output_gradient), impl::write(input_gradient), impl::write(gate_gradient),
            backend::write(workspace)},
           teams, functor);
  };
  using impl::RowTeam;
  const bool done = impl::with_stretch_team<Space, T, RowTeam<128, 128, 1>, RowTeam<256, 256, 1>,
                                            RowTeam<512, 512, 1>, RowTeam<512, 512, 2>>(
      of.length, of.weight,
      [&](auto row) {
        queue(backend::Teams<row.threads>{shares * groups}, RegisterBackward<T, row.packets>{of});
      },
      input, gate, output_gradient, input_gradient, gate_gradient);
  if (!done) queue(backend::Teams<impl::general_row_threads>{shares * groups}, GeneralBackward<T>{of});
  impl::column_sum<Space, Accumulator<T>, G>(stream, "gated_rms_norm/backward/sum", shares, columns,
                                             accumulate, {workspace.data(), weight_gradient.data()});
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                \
  template void gated_rms_norm_backward<SPACE, T, G>(                                                  \
      Stream<SPACE>&, Columns<const T>, Columns<const T>, Vector<const T, SPACE>,                      \
      Matrix<const Accumulator<T>, SPACE>, Columns<const T>, Columns<T>, Columns<T>, Vector<G, SPACE>, \
      Matrix<Accumulator<T>, SPACE>, bool);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
