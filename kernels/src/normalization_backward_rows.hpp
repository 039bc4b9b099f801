// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/async_copy.hpp>

#include "normalization_shape.hpp"
#include "store_sums.hpp"

namespace encore::kernels::impl {

/// What the kernels of a normalization's backward pass work on. A team takes one share of the rows and leaves its sums
/// for the gradients of weight and bias in one row of the partials.
template <class T>
struct NormalizationGradient {
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
  std::int64_t tokens, hidden;
  std::int64_t shares = 0, rows_of_share = 0, longer_shares = 0;  ///< that have one row more

  void share_out(std::int64_t into) {
    shares = into;
    rows_of_share = tokens / into;
    longer_shares = tokens % into;
  }
  KOKKOS_FUNCTION std::int64_t first_row(std::int64_t share) const {
    return share * rows_of_share + (share < longer_shares ? share : longer_shares);
  }
};

/// What two passes over a row do with one packet of it, and the sums for the gradients of weight and bias that the
/// first leaves. With c = input - mean, d = output_gradient * weight and inverse = 1 / deviation.
template <bool Centered, class T>
struct NormalizationRow {
  using A = Accumulator<T>;
  static constexpr int width = backend::packet_width<T>;
  using P = backend::Packet<T, width>;

  A mean, inverse;
  A gradient_total = 0;    ///< of d
  A projection_total = 0;  ///< of d * c
  A mean_gradient, slope;

  KOKKOS_FUNCTION void sum(const P& input, const P& gradient, const P& weight, A (&weight_sums)[width],
                           [[maybe_unused]] A* bias_sums) {
    for (int i = 0; i < width; ++i) {
      const A g = static_cast<A>(gradient[i]), w = static_cast<A>(weight[i]);
      const A product = g * centered(input[i]);
      projection_total += product * w;
      weight_sums[i] += product * inverse;
      if constexpr (Centered) {
        gradient_total += g * w;
        bias_sums[i] += g;
      }
    }
  }

  template <class Rows, class Team>
  KOKKOS_FUNCTION void join(const Team& team, A hidden) {
    mean_gradient = Centered ? Rows::sum(team, gradient_total) / hidden : A(0);
    slope = Rows::sum(team, projection_total) / hidden * inverse * inverse * inverse;
  }

  KOKKOS_FUNCTION P result(const P& input, const P& gradient, const P& weight, const P& residual) const {
    P result;
    for (int i = 0; i < width; ++i) {
      A d = static_cast<A>(gradient[i]) * static_cast<A>(weight[i]);
      if constexpr (Centered) d -= mean_gradient;
      result[i] = static_cast<T>(inverse * d + (static_cast<A>(residual[i]) - slope * centered(input[i])));
    }
    return result;
  }

 private:
  KOKKOS_FUNCTION A centered(T input) const {
    return Centered ? static_cast<A>(input) - mean : static_cast<A>(input);
  }
};

/// Adds up the sums that the rows of a team have in registers, in their order, by way of its scratch, and puts the
/// result into a row of the partials.
template <class Rows, class Team, class A, int Width>
KOKKOS_FUNCTION void store_sums_of_rows(const Team& team, const A (&sums)[Rows::packets][Width], int hidden,
                                        A* partials) {
  constexpr int part = backend::packet_width<A>;
  const int lane = team.rank() % Rows::lanes;
  A* gathered = team.template scratch<A>();
  A* own = Rows::rows == 1 ? partials : gathered + team.rank() / Rows::lanes * hidden;
  for (int k = 0; k < Rows::packets; ++k) {
    const int begin = (lane + k * Rows::lanes) * Width;
    if (begin < hidden) store_sums<Width>(own + begin, sums[k], false);
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

/// Rows and sums stay in registers; all loads of a row are under way together. For few rows.
template <bool Centered, class T, class Rows>
struct RegisterBackward {
  using A = Accumulator<T>;
  using Row = NormalizationRow<Centered, T>;
  using P = typename Row::P;
  static constexpr int width = Row::width;

  NormalizationGradient<T> of;

  /// Where the sums of a team's rows meet.
  static std::size_t scratch_bytes(std::int64_t hidden) {
    return Rows::rows == 1 ? 0 : Rows::rows * static_cast<std::size_t>(hidden) * sizeof(A);
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const int lane = team.rank() % Rows::lanes, hidden = static_cast<int>(of.hidden),
              packets = hidden / width;
    const std::int64_t share = team.league_rank(), end = of.first_row(share + 1);
    P weight[Rows::packets];
    for (int k = 0; k < Rows::packets; ++k)
      if (lane + k * Rows::lanes < packets)
        weight[k] = backend::load_packet<width>(of.weight, lane + k * Rows::lanes);
    A weight_sums[Rows::packets][width] = {};
    A bias_sums[Centered ? Rows::packets : 1][width] = {};
    for (std::int64_t at = of.first_row(share) + team.rank() / Rows::lanes; at < end; at += Rows::rows) {
      const std::int64_t begin = at * of.hidden;
      P input[Rows::packets], gradient[Rows::packets], residual[Rows::packets] = {};
      for (int k = 0; k < Rows::packets; ++k) {
        const int packet = lane + k * Rows::lanes;
        if (packet >= packets) continue;
        input[k] = backend::load_packet<width>(of.input + begin, packet);
        gradient[k] = backend::load_packet<width>(of.output_gradient + begin, packet);
        if (of.residual_gradient != nullptr)
          residual[k] = backend::load_packet<width>(of.residual_gradient + begin, packet);
      }
      Row row{Centered ? of.mean[at] : A(0), of.inverse[at]};
      keep_packed(weight);
      for (int k = 0; k < Rows::packets; ++k)
        if (lane + k * Rows::lanes < packets)
          row.sum(input[k], gradient[k], weight[k], weight_sums[k], bias_sums[Centered ? k : 0]);
      row.template join<Rows>(team, static_cast<A>(hidden));
      keep_packed(input);
      keep_packed(gradient);
      keep_packed(weight);
      for (int k = 0; k < Rows::packets; ++k)
        if (lane + k * Rows::lanes < packets)
          backend::store_packet(of.input_gradient + begin, lane + k * Rows::lanes,
                                row.result(input[k], gradient[k], weight[k], residual[k]));
    }
    store_sums_of_rows<Rows>(team, weight_sums, hidden, of.weight_partials + share * hidden);
    if constexpr (Centered) {
      team.barrier();
      store_sums_of_rows<Rows>(team, bias_sums, hidden, of.bias_partials + share * hidden);
    }
  }
};

/// As above; the next rows are on their way to the scratch while one is worked on. For many rows.
template <bool Centered, class T, class Rows, int Stages>
struct StagedBackward {
  using A = Accumulator<T>;
  using Row = NormalizationRow<Centered, T>;
  using P = typename Row::P;
  static constexpr int width = Row::width;
  static_assert(Rows::lanes == 32, "a thread waits for its own copies only");

  NormalizationGradient<T> of;

  static std::size_t scratch_bytes(std::int64_t hidden) {
    const std::size_t rows = sizeof(Stage) * Stages * Rows::rows;
    const std::size_t sums = Rows::rows * static_cast<std::size_t>(hidden) * sizeof(A);
    return rows < sums ? sums : rows;
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const int lane = team.rank() % Rows::lanes, hidden = static_cast<int>(of.hidden),
              packets = hidden / width;
    const std::int64_t share = team.league_rank(), end = of.first_row(share + 1);
    Stage* stages = team.template scratch<Stage>() + team.rank() / Rows::lanes * Stages;
    std::int64_t at = of.first_row(share) + team.rank() / Rows::lanes;
    A mean[Stages], inverse[Stages];  // Of the rows under way, the next one first.
    for (int s = 0; s < Stages; ++s)
      start(at + s * Rows::rows, end, lane, packets, stages[s], mean[s], inverse[s]);
    P weight[kept];
    for (int k = 0; k < kept; ++k)
      if (lane + k * Rows::lanes < packets)
        weight[k] = backend::load_packet<width>(of.weight, lane + k * Rows::lanes);
    A weight_sums[Rows::packets][width] = {};
    A bias_sums[Centered ? Rows::packets : 1][width] = {};
    for (int turn = 0; at < end; at += Rows::rows, turn = turn + 1 == Stages ? 0 : turn + 1) {
      Stage& stage = stages[turn];
      Row row{mean[0], inverse[0]};
      for (int s = 1; s < Stages; ++s) {
        mean[s - 1] = mean[s];
        inverse[s - 1] = inverse[s];
      }
      backend::AsyncCopy::wait<Stages - 1>();
      keep_packed(weight);
      for (int k = 0; k < Rows::packets; ++k)
        if (lane + k * Rows::lanes < packets)
          row.sum(stage.input[k][lane], stage.gradient[k][lane], weight_of(weight, k, lane), weight_sums[k],
                  bias_sums[Centered ? k : 0]);
      row.template join<Rows>(team, static_cast<A>(hidden));
      keep_packed(weight);
      for (int k = 0; k < Rows::packets; ++k) {
        if (lane + k * Rows::lanes >= packets) continue;
        P residual = {};
        if (of.residual_gradient != nullptr) residual = stage.residual[k][lane];
        backend::store_packet(
            of.input_gradient + at * of.hidden, lane + k * Rows::lanes,
            row.result(stage.input[k][lane], stage.gradient[k][lane], weight_of(weight, k, lane), residual));
      }
      start(at + Stages * Rows::rows, end, lane, packets, stage, mean[Stages - 1], inverse[Stages - 1]);
    }
    backend::AsyncCopy::wait<0>();
    team.barrier();
    store_sums_of_rows<Rows>(team, weight_sums, hidden, of.weight_partials + share * hidden);
    if constexpr (Centered) {
      team.barrier();
      store_sums_of_rows<Rows>(team, bias_sums, hidden, of.bias_partials + share * hidden);
    }
  }

 private:
  /// The weights are kept in registers where that leaves enough of them.
  static constexpr int kept = Rows::packets <= 4 ? Rows::packets : 1;

  struct Stage {
    P input[Rows::packets][Rows::lanes], gradient[Rows::packets][Rows::lanes],
        residual[Rows::packets][Rows::lanes];
  };

  KOKKOS_FUNCTION P weight_of(const P (&weight)[kept], int k, int lane) const {
    if constexpr (kept == Rows::packets)
      return weight[k];
    else
      return backend::load_packet<width>(of.weight, lane + k * Rows::lanes);
  }

  KOKKOS_FUNCTION void start(std::int64_t row, std::int64_t end, int lane, int packets, Stage& stage, A& mean,
                             A& inverse) const {
    if (row < end) {
      const std::int64_t begin = row * of.hidden;
      for (int k = 0; k < Rows::packets; ++k) {
        const int packet = lane + k * Rows::lanes;
        if (packet >= packets) continue;
        backend::AsyncCopy::start(&stage.input[k][lane], of.input + begin + packet * width);
        backend::AsyncCopy::start(&stage.gradient[k][lane], of.output_gradient + begin + packet * width);
        if (of.residual_gradient != nullptr)
          backend::AsyncCopy::start(&stage.residual[k][lane], of.residual_gradient + begin + packet * width);
      }
      mean = Centered ? of.mean[row] : A(0);
      inverse = of.inverse[row];
    }
    backend::AsyncCopy::end_group();
  }
};

}  // namespace encore::kernels::impl
