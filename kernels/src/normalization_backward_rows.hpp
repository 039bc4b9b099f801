// SPDX-License-Identifier: Apache-2.0
#pragma once

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
  A mean_gradient = 0, slope = 0;

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

  /// Once the totals are those of the whole row.
  KOKKOS_FUNCTION void finish(A hidden) {
    mean_gradient = gradient_total / hidden;
    slope = projection_total / hidden * inverse * inverse * inverse;
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

/// Rows and sums stay in registers; all loads of a row are under way together. For few or short rows.
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
      if constexpr (Centered) row.gradient_total = Rows::sum(team, row.gradient_total);
      row.projection_total = Rows::sum(team, row.projection_total);
      row.finish(static_cast<A>(hidden));
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

/// A thread keeps one packet of columns; the team works on `Together` rows at a time, which share the wait for memory
/// and for each other's sums. For many or long rows.
template <bool Centered, class T, int Threads, int Together>
struct TogetherBackward {
  using A = Accumulator<T>;
  using Row = NormalizationRow<Centered, T>;
  using P = typename Row::P;
  static constexpr int width = Row::width, warps = Threads / 32;
  static constexpr int sums_of_row = Centered ? 2 : 1;

  NormalizationGradient<T> of;

  /// The warps' sums, twice: those of the next rows may come while others still read those of the last.
  static constexpr std::size_t scratch_bytes = 2 * Together * sums_of_row * warps * sizeof(A);

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const int packet = team.rank(), hidden = static_cast<int>(of.hidden);
    const bool active = packet < hidden / width;
    const std::int64_t share = team.league_rank(), end = of.first_row(share + 1);
    P weight[1] = {};
    if (active) weight[0] = backend::load_packet<width>(of.weight, packet);
    A weight_sums[width] = {}, bias_sums[width] = {};
    int half = 0;
    for (std::int64_t first = of.first_row(share); first < end; first += Together, half = 1 - half) {
      P input[Together] = {}, gradient[Together] = {}, residual[Together] = {};
      Row row[Together] = {};
      for (int r = 0; r < Together; ++r) {
        if (first + r >= end) continue;
        row[r] = {Centered ? of.mean[first + r] : A(0), of.inverse[first + r]};
        if (!active) continue;
        const std::int64_t begin = (first + r) * of.hidden;
        input[r] = backend::load_packet<width>(of.input + begin, packet);
        gradient[r] = backend::load_packet<width>(of.output_gradient + begin, packet);
        if (of.residual_gradient != nullptr)
          residual[r] = backend::load_packet<width>(of.residual_gradient + begin, packet);
      }
      keep_packed(weight);
      for (int r = 0; r < Together; ++r) row[r].sum(input[r], gradient[r], weight[0], weight_sums, bias_sums);
      join(team, row, half);
      keep_packed(input);
      keep_packed(gradient);
      keep_packed(weight);
      for (int r = 0; r < Together; ++r)
        if (active && first + r < end)
          backend::store_packet(of.input_gradient + (first + r) * of.hidden, packet,
                                row[r].result(input[r], gradient[r], weight[0], residual[r]));
    }
    if (!active) return;
    store_sums<width>(of.weight_partials + share * hidden + packet * width, weight_sums, false);
    if constexpr (Centered)
      store_sums<width>(of.bias_partials + share * hidden + packet * width, bias_sums, false);
  }

 private:
  /// Sums over the team, in the order of its warps.
  template <class Team>
  KOKKOS_FUNCTION void join(const Team& team, Row (&row)[Together], int half) const {
    const LaneGroups<32, Team> lanes(team);
    A* sums = team.template scratch<A>() + half * Together * sums_of_row * warps;
    for (int r = 0; r < Together; ++r) {
      const A projection = lanes.sum(row[r].projection_total);
      const A gradient = Centered ? lanes.sum(row[r].gradient_total) : A(0);
      if (lanes.lane != 0) continue;
      sums[r * sums_of_row * warps + lanes.group] = projection;
      if constexpr (Centered) sums[(r * sums_of_row + 1) * warps + lanes.group] = gradient;
    }
    team.barrier();
    for (int r = 0; r < Together; ++r) {
      A projection(0), gradient(0);
      for (int warp = 0; warp < warps; ++warp) {
        projection += sums[r * sums_of_row * warps + warp];
        if constexpr (Centered) gradient += sums[(r * sums_of_row + 1) * warps + warp];
      }
      row[r].projection_total = projection;
      row[r].gradient_total = gradient;
      row[r].finish(static_cast<A>(of.hidden));
    }
  }
};

}  // namespace encore::kernels::impl
