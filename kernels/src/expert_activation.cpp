// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/expert_activation.hpp>

#include "activation_formulas.hpp"
#include "lanes.hpp"
#include "row_packets.hpp"

namespace encore::kernels {

namespace {

/// Gates and ups of one packet of activated columns, from and to a row of both.
template <int Width, bool Interleaved, class T>
struct GatePackets {
  using Values = backend::Packet<T, Width>;

  Values gate, up;

  KOKKOS_FUNCTION static GatePackets load(const T* row, std::int64_t ffn, std::int64_t packet) {
    if constexpr (Interleaved) {
      const Values halves[2] = {backend::load_packet<Width>(row, 2 * packet),
                                backend::load_packet<Width>(row, 2 * packet + 1)};
      GatePackets result;
      for (int i = 0; i < Width; ++i) {
        result.gate[i] = halves[2 * i / Width][2 * i % Width];
        result.up[i] = halves[(2 * i + 1) / Width][(2 * i + 1) % Width];
      }
      return result;
    } else {
      return {backend::load_packet<Width>(row, packet), backend::load_packet<Width>(row + ffn, packet)};
    }
  }

  KOKKOS_FUNCTION void store(T* row, std::int64_t ffn, std::int64_t packet) const {
    if constexpr (Interleaved) {
      Values halves[2];
      for (int i = 0; i < Width; ++i) {
        halves[2 * i / Width][2 * i % Width] = gate[i];
        halves[(2 * i + 1) / Width][(2 * i + 1) % Width] = up[i];
      }
      backend::store_packet(row, 2 * packet, halves[0]);
      backend::store_packet(row, 2 * packet + 1, halves[1]);
    } else {
      backend::store_packet(row, packet, gate);
      backend::store_packet(row + ffn, packet, up);
    }
  }
};

template <int Width, bool Interleaved, class Formula, class T>
struct ActivationForward {
  using A = Accumulator<T>;

  Formula formula;
  const T* raised;
  const std::int32_t* source;
  const A* weights;
  T* activated;
  std::int64_t ffn;

  KOKKOS_FUNCTION void operator()(std::int64_t row, std::int64_t packet) const {
    // The packet is loaded while the pair is still on its way.
    const std::int32_t pair = source[row];
    const A weight = pair < 0 ? A(0) : weights[pair];
    backend::Packet<T, Width> result;
    if constexpr (Formula::gated) {
      const auto in = GatePackets<Width, Interleaved, T>::load(raised + row * 2 * ffn, ffn, packet);
      for (int i = 0; i < Width; ++i)
        result[i] =
            static_cast<T>(weight * formula.value(static_cast<A>(in.gate[i]), static_cast<A>(in.up[i])));
    } else {
      const auto in = backend::load_packet<Width>(raised + row * ffn, packet);
      for (int i = 0; i < Width; ++i)
        result[i] = static_cast<T>(weight * formula.value(static_cast<A>(in[i])));
    }
    if (pair >= 0) backend::store_packet(activated + row * ffn, packet, result);
  }
};

/// Both columns of a packet, or the one where there is no up.
template <int Width, bool Interleaved, class Formula, class T>
struct RaisedPackets {
  static constexpr bool gated = Formula::gated;
  using Values = std::conditional_t<gated, GatePackets<Width, Interleaved, T>, backend::Packet<T, Width>>;

  KOKKOS_FUNCTION static Values load(const T* raised, std::int64_t row, std::int64_t ffn,
                                     std::int64_t packet) {
    if constexpr (gated)
      return Values::load(raised + row * 2 * ffn, ffn, packet);
    else
      return backend::load_packet<Width>(raised + row * ffn, packet);
  }
  KOKKOS_FUNCTION static void store(T* raised, std::int64_t row, std::int64_t ffn, std::int64_t packet,
                                    const Values& values) {
    if constexpr (gated)
      values.store(raised + row * 2 * ffn, ffn, packet);
    else
      backend::store_packet(raised + row * ffn, packet, values);
  }
};

/// `Lanes` threads of a GPU's team take a row, whose weight gets the row's dot product; a host team takes one row. The
/// teams behind the last row clear the gradients of pairs without one.
template <int Threads, int Lanes, int Width, bool Interleaved, class Formula, class T>
struct ActivationBackward {
  using A = Accumulator<T>;
  using Raised = RaisedPackets<Width, Interleaved, Formula, T>;
  static constexpr std::int64_t cleared_pairs = 1024;

  Formula formula;
  const T* raised;
  const T* activated_gradient;
  const std::int32_t* source;
  const std::int32_t* row_of;
  const A* weights;
  T* raised_gradient;
  A* weight_gradient;
  std::int64_t rows, pairs, ffn;

  static std::int64_t teams_of(std::int64_t rows, bool on_host) {
    return on_host ? rows : impl::rounded_up_quotient(rows, Threads / Lanes);
  }

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    constexpr bool on_host = impl::is_host_team<Team>;
    const std::int64_t first_clearing = on_host ? rows : impl::rounded_up_quotient(rows, Threads / Lanes);
    if (team.league_rank() >= first_clearing)
      return clear_pairs(team, (team.league_rank() - first_clearing) * cleared_pairs);
    if constexpr (on_host) {
      const std::int64_t row = team.league_rank();
      const std::int32_t pair = source[row];
      if (pair < 0) return;
      const ActivationBackward local = *this;
      const A weight = weights[pair];
      weight_gradient[pair] = team.template sum_over<A>(ffn / Width, [=](std::int64_t packet) {
        return local.do_packet(row, packet, local.load(row, packet), weight, true);
      });
    } else {
      const std::int64_t row = team.league_rank() * (Threads / Lanes) + team.rank() / Lanes;
      const int lane = team.rank() % Lanes;
      const std::int32_t pair = row < rows ? source[row] : -1;
      const A own = row < rows ? do_share(row, pair, lane) : A(0);
      A product;
      if constexpr (Lanes == Threads)
        product = team.sum(own);
      else
        product = impl::LaneGroups<Lanes, Team>(team).sum(own);
      if (lane == 0 && pair >= 0) weight_gradient[pair] = product;
    }
  }

 private:
  struct Loaded {
    backend::Packet<T, Width> gradient;
    typename Raised::Values raised;
  };

  KOKKOS_FUNCTION Loaded load(std::int64_t row, std::int64_t packet) const {
    return {backend::load_packet<Width>(activated_gradient + row * ffn, packet),
            Raised::load(raised, row, ffn, packet)};
  }

  /// A lane's part of the dot product.
  KOKKOS_FUNCTION A do_share(std::int64_t row, std::int32_t pair, int lane) const {
    constexpr int packets_in_flight = 3;  // that a thread loads before it works on them
    const std::int64_t packets = ffn / Width;
    const A weight = pair < 0 ? A(0) : weights[pair];
    A product(0);
    for (std::int64_t first = lane; first < packets; first += packets_in_flight * Lanes) {
      Loaded in[packets_in_flight];
      for (int u = 0; u < packets_in_flight; ++u)
        if (first + u * Lanes < packets) in[u] = load(row, first + u * Lanes);
      for (int u = 0; u < packets_in_flight; ++u)
        if (first + u * Lanes < packets)
          product += do_packet(row, first + u * Lanes, in[u], weight, pair >= 0);
    }
    return product;
  }

  /// The packet's part of the dot product.
  KOKKOS_FUNCTION A do_packet(std::int64_t row, std::int64_t packet, const Loaded& in, A weight,
                              bool stores) const {
    A product(0);
    typename Raised::Values out;
    for (int i = 0; i < Width; ++i) {
      const A upstream = static_cast<A>(in.gradient[i]);
      if constexpr (Formula::gated) {
        const A weighted = weight * upstream;
        const auto slopes =
            formula.slopes(static_cast<A>(in.raised.gate[i]), static_cast<A>(in.raised.up[i]));
        product += upstream * slopes.value;
        out.gate[i] = static_cast<T>(weighted * slopes.gate);
        out.up[i] = static_cast<T>(weighted * slopes.up);
      } else {
        const A x = static_cast<A>(in.raised[i]);
        product += upstream * formula.value(x);
        out[i] = static_cast<T>(weight * upstream * formula.slope(x));
      }
    }
    if (stores) Raised::store(raised_gradient, row, ffn, packet, out);
    return product;
  }

  template <class Team>
  KOKKOS_FUNCTION void clear_pairs(const Team& team, std::int64_t begin) const {
    const std::int64_t end = begin + cleared_pairs < pairs ? begin + cleared_pairs : pairs;
    team.for_each(end - begin, [=, this](std::int64_t i) {
      if (row_of[begin + i] < 0) weight_gradient[begin + i] = A(0);
    });
  }
};

/// Calls `launch(formula, interleaved)`.
template <class A, class Launch>
void with_formula(const ExpertActivation& activation, const Launch& launch) {
  switch (activation.kind) {
    case ExpertActivationKind::swiglu: return launch(impl::Swiglu<A>{}, std::false_type{});
    case ExpertActivationKind::swiglu_clamped:
      return launch(impl::SwigluClamped<A>{static_cast<A>(activation.limit)}, std::true_type{});
    case ExpertActivationKind::relu_squared: return launch(impl::ReluSquared<A>{}, std::false_type{});
  }
}

}  // namespace

std::int64_t raised_columns(const ExpertActivation& activation, std::int64_t ffn) {
  return activation.kind == ExpertActivationKind::relu_squared ? ffn : 2 * ffn;
}

template <class Space, class T>
void expert_activation_forward(Stream<Space>& stream, const ExpertActivation& activation,
                               Matrix<const T, Space> raised, Vector<const std::int32_t, Space> source,
                               Matrix<const Accumulator<T>, Space> weights, Matrix<T, Space> activated) {
  const std::int64_t rows = impl::rows_of(activated), ffn = impl::columns_of(activated);
  impl::require_shape(
      impl::is_matrix(raised, rows, raised_columns(activation, ffn)) && impl::is_vector(source, rows) &&
          weights.span_is_contiguous() && impl::is_matrix(activated, rows, ffn),
      "expert_activation_forward: raised must be [rows, raised_columns(activation, ffn)], source "
      "[rows] and weights [tokens, topk] where activated is [rows, ffn]");
  with_formula<Accumulator<T>>(activation, [&](auto formula, auto interleaved) {
    impl::with_packet_width<Space>(
        ffn,
        [&](auto width) {
          impl::launch_row_packets(
              stream, "expert_activation/forward",
              {backend::read(raised), backend::read(source), backend::read(weights),
               backend::write(activated)},
              rows, ffn / width,
              ActivationForward<decltype(width)::value, decltype(interleaved)::value, decltype(formula), T>{
                  formula, raised.data(), source.data(), weights.data(), activated.data(), ffn});
        },
        raised.data(), activated.data());
  });
}

template <class Space, class T>
void expert_activation_backward(Stream<Space>& stream, const ExpertActivation& activation,
                                Matrix<const T, Space> raised, Matrix<const T, Space> activated_gradient,
                                Vector<const std::int32_t, Space> source,
                                Matrix<const std::int32_t, Space> row_of,
                                Matrix<const Accumulator<T>, Space> weights, Matrix<T, Space> raised_gradient,
                                Matrix<Accumulator<T>, Space> weight_gradient) {
  const std::int64_t rows = impl::rows_of(activated_gradient), ffn = impl::columns_of(activated_gradient);
  const std::int64_t raised_width = raised_columns(activation, ffn);
  const std::int64_t tokens = impl::rows_of(row_of), topk = impl::columns_of(row_of);
  impl::require_shape(
      impl::is_matrix(raised, rows, raised_width) && impl::is_matrix(activated_gradient, rows, ffn) &&
          impl::is_vector(source, rows) && impl::is_matrix(raised_gradient, rows, raised_width),
      "expert_activation_backward: raised and its gradient must be [rows, raised_columns(activation, "
      "ffn)] and source [rows] where activated_gradient is [rows, ffn]");
  impl::require_shape(
      impl::is_matrix(row_of, tokens, topk) && impl::is_matrix(weights, tokens, topk) &&
          impl::is_matrix(weight_gradient, tokens, topk),
      "expert_activation_backward: row_of, weights and weight_gradient must be [tokens, topk]");
  with_formula<Accumulator<T>>(activation, [&](auto formula, auto interleaved) {
    impl::with_packet_width<Space>(
        ffn,
        [&](auto width) {
          const auto queue = [&](auto lanes) {
            constexpr int threads = 128;
            using Functor = ActivationBackward<threads, decltype(lanes)::value, decltype(width)::value,
                                               decltype(interleaved)::value, decltype(formula), T>;
            launch(stream, "expert_activation/backward",
                   {backend::read(raised), backend::read(activated_gradient), backend::read(source),
                    backend::read(row_of), backend::read(weights), backend::write(raised_gradient),
                    backend::write(weight_gradient)},
                   backend::Teams<threads>{Functor::teams_of(rows, backend::is_host_space<Space>) +
                                           impl::rounded_up_quotient(tokens * topk, Functor::cleared_pairs)},
                   Functor{formula, raised.data(), activated_gradient.data(), source.data(), row_of.data(),
                           weights.data(), raised_gradient.data(), weight_gradient.data(), rows,
                           tokens * topk, ffn});
          };
          // A warp a row needs no barrier, but fills a GPU with many rows only.
          if (rows >= 8192)
            queue(impl::WidthConstant<32>{});
          else
            queue(impl::WidthConstant<128>{});
        },
        raised.data(), activated_gradient.data(), raised_gradient.data());
  });
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                      \
  template void expert_activation_forward<SPACE, T>(                                                      \
      Stream<SPACE>&, const ExpertActivation&, Matrix<const T, SPACE>, Vector<const std::int32_t, SPACE>, \
      Matrix<const Accumulator<T>, SPACE>, Matrix<T, SPACE>);                                             \
  template void expert_activation_backward<SPACE, T>(                                                     \
      Stream<SPACE>&, const ExpertActivation&, Matrix<const T, SPACE>, Matrix<const T, SPACE>,            \
      Vector<const std::int32_t, SPACE>, Matrix<const std::int32_t, SPACE>,                               \
      Matrix<const Accumulator<T>, SPACE>, Matrix<T, SPACE>, Matrix<Accumulator<T>, SPACE>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
