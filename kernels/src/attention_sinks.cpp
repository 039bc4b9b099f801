// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/attention_sinks.hpp>

#include "column_sum.hpp"
#include "lanes.hpp"
#include "map.hpp"

namespace encore::kernels {

namespace {

struct Same {
  template <class A>
  KOKKOS_FUNCTION A operator()(A value) const {
    return value;
  }
};

/// A team takes one share of the tokens, a group of lanes one head after the other.
template <int Width, class T>
struct SinkGradients {
  using A = Accumulator<T>;
  static constexpr int threads = 128;

  const T* sinks;
  const T* output;
  const T* output_gradient;
  const A* log_sum_exp;
  A* partials;
  std::int64_t shares, tokens, sequence, heads, head_dim;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    using Groups = impl::LaneGroups<8, Team>;
    const Groups groups(team);
    const std::int64_t share = team.league_rank();
    const std::int64_t begin = tokens * share / shares, end = tokens * (share + 1) / shares;
    for (std::int64_t head = groups.group; head < heads; head += Groups::groups) {
      const A sink = static_cast<A>(sinks[head]);
      A total(0);
      for (std::int64_t token = begin; token < end; ++token) {
        const std::int64_t place = (token * heads + head) * head_dim;
        const std::int64_t batch = impl::quotient(token, sequence);
        const std::int64_t row = (batch * heads + head) * sequence + token - batch * sequence;
        const A dot =
            groups.sum(part_of_dot<Groups::lanes>(output + place, output_gradient + place, groups.lane));
        total -= Kokkos::exp(sink - log_sum_exp[row]) * dot;
      }
      if (groups.lane == 0) partials[share * heads + head] = total;
    }
  }

 private:
  template <int Lanes>
  KOKKOS_FUNCTION A part_of_dot(const T* first, const T* second, int lane) const {
    A total(0);
    if constexpr (Width == 1) {
#pragma omp simd reduction(+ : total)
      for (std::int64_t d = lane; d < head_dim; d += Lanes)
        total += static_cast<A>(first[d]) * static_cast<A>(second[d]);
    } else {
      for (std::int64_t packet = lane; packet < head_dim / Width; packet += Lanes) {
        const auto a = backend::load_packet<Width>(first, packet);
        const auto b = backend::load_packet<Width>(second, packet);
        for (int i = 0; i < Width; ++i) total += static_cast<A>(a[i]) * static_cast<A>(b[i]);
      }
    }
    return total;
  }
};

}  // namespace

template <class Space, class T>
void attention_sinks_forward(Stream<Space>& stream, Vector<const T, Space> sinks,
                             Vector<Accumulator<T>, Space> result) {
  const std::int64_t heads = impl::rows_of(sinks);
  impl::require_shape(impl::is_vector(sinks, heads) && impl::is_vector(result, heads),
                      "attention_sinks_forward: sinks and result must both be [heads]");
  launch(stream, "attention_sinks/forward", {backend::read(sinks), backend::write(result)},
         backend::Range{heads},
         impl::Map<1, Same, Accumulator<T>, T, 1>{Same{}, result.data(), {sinks.data()}, heads});
}

std::int64_t attention_sinks_workspace_rows(std::int64_t tokens) {
  constexpr std::int64_t most = 6 * 132;  // Whole waves of teams on a GPU with 132 multiprocessors.
  const std::int64_t shares = impl::rounded_up_quotient(tokens, 2);
  return shares < 1 ? 1 : shares > most ? most : shares;
}

template <class Space, class T, class G>
void attention_sinks_backward(Stream<Space>& stream, Vector<const T, Space> sinks,
                              Matrix<const T, Space> output, Matrix<const T, Space> output_gradient,
                              Matrix<const Accumulator<T>, Space> log_sum_exp, Vector<G, Space> gradient,
                              Matrix<Accumulator<T>, Space> workspace, bool accumulate) {
  using A = Accumulator<T>;
  const std::int64_t heads = impl::rows_of(sinks), tokens = impl::rows_of(output);
  const std::int64_t width = impl::columns_of(output), sequence = impl::columns_of(log_sum_exp);
  impl::require_shape(heads > 0 && sequence > 0 && width % heads == 0 && tokens % sequence == 0 &&
                          impl::is_vector(sinks, heads) && impl::is_vector(gradient, heads) &&
                          impl::is_matrix(output, tokens, width) &&
                          impl::is_matrix(output_gradient, tokens, width) &&
                          impl::is_matrix(log_sum_exp, tokens / sequence * heads, sequence),
                      "attention_sinks_backward: sinks and gradient must be [heads], output and its gradient "
                      "[batch * sequence, heads * head_dim], log_sum_exp [batch * heads, sequence]");
  const std::int64_t shares = attention_sinks_workspace_rows(tokens);
  impl::require_shape(
      impl::has_rows(workspace, shares, heads),
      "attention_sinks_backward: the workspace must be [attention_sinks_workspace_rows(tokens), heads]");
  impl::with_packet_width<Space>(
      width / heads,
      [&](auto packet) {
        using Functor = SinkGradients<packet, T>;
        launch(stream, "attention_sinks/backward",
               {backend::read(sinks), backend::read(output), backend::read(output_gradient),
                backend::read(log_sum_exp), backend::write(workspace.data(), shares * heads)},
               backend::Teams<Functor::threads>{shares},
               Functor{sinks.data(), output.data(), output_gradient.data(), log_sum_exp.data(),
                       workspace.data(), shares, tokens, sequence, heads, width / heads});
      },
      output.data(), output_gradient.data());
  impl::column_sum<Space, A, G>(stream, "attention_sinks/backward/sum", shares, heads, accumulate,
                                {workspace.data(), gradient.data()});
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                      \
  template void attention_sinks_forward<SPACE, T>(Stream<SPACE>&, Vector<const T, SPACE>, \
                                                  Vector<Accumulator<T>, SPACE>);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                       \
  template void attention_sinks_backward<SPACE, T, G>(                                        \
      Stream<SPACE>&, Vector<const T, SPACE>, Matrix<const T, SPACE>, Matrix<const T, SPACE>, \
      Matrix<const Accumulator<T>, SPACE>, Vector<G, SPACE>, Matrix<Accumulator<T>, SPACE>, bool);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
