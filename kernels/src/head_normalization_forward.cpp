// SPDX-License-Identifier: Apache-2.0
#include "head_operands.hpp"

namespace encore::kernels {

namespace {

using impl::HeadOperands;
using impl::HeadPart;
using impl::LaneGroups;

/// A head stays in the registers of `Lanes` threads.
template <int Lanes, int Width, class T>
struct RegisterHeadForward {
  HeadOperands<T> of;
  T* result;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    using A = Accumulator<T>;
    using Groups = LaneGroups<Lanes, Team>;
    const Groups groups(team);
    const std::int64_t heads = of.all_heads(), half = of.half();
    const std::int64_t item = team.league_rank() * Groups::groups + groups.group;
    const std::int64_t token = impl::quotient(item, heads), head = item - token * heads;
    const int lane = groups.lane;
    const bool active = token < of.heads.tokens && static_cast<std::int64_t>(lane) * Width < half;
    HeadPart<Width, A> x, weight;
    x.load(of.projected + token * of.heads.row_stride + head * of.heads.head_dim, half, lane, active);
    A squares(0);
    for (int i = 0; i < Width; ++i) squares += x.first[i] * x.first[i] + x.second[i] * x.second[i];
    const A inverse = of.inverse_rms(groups.sum(squares));
    if (!active) return;
    weight.load(of.weight(head), half, lane, true);
    for (int i = 0; i < Width; ++i) {
      x.first[i] *= inverse * weight.first[i];
      x.second[i] *= inverse * weight.second[i];
    }
    x.rotate(of, token, lane, A(1));
    x.store(result + item * of.heads.head_dim, half, lane);
  }
};

/// Heads of any size: a team takes one token.
template <class T>
struct GeneralHeadForward {
  HeadOperands<T> of;
  T* result;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    using Groups = LaneGroups<32, Team>;
    const Groups groups(team);
    const std::int64_t token = team.league_rank();
    for (std::int64_t head = groups.group; head < of.all_heads(); head += Groups::groups) {
      if (of.interleaved)
        do_head<true>(groups, token, head);
      else
        do_head<false>(groups, token, head);
    }
  }

 private:
  template <bool Interleaved, class Groups>
  KOKKOS_FUNCTION void do_head(const Groups& groups, std::int64_t token, std::int64_t head) const {
    using A = Accumulator<T>;
    const std::int64_t half = of.half(), head_dim = of.heads.head_dim;
    const T* x = of.projected + token * of.heads.row_stride + head * head_dim;
    const T* weight = of.weight(head);
    T* y = result + (token * of.all_heads() + head) * head_dim;
    A squares(0);
#pragma omp simd reduction(+ : squares)
    for (std::int64_t d = groups.lane; d < head_dim; d += Groups::lanes)
      squares += static_cast<A>(x[d]) * static_cast<A>(x[d]);
    const A inverse = of.inverse_rms(groups.sum(squares));
    const A* cosines = of.cosine == nullptr ? nullptr : of.cosine + of.table_row(token);
    const A* sines = of.cosine == nullptr ? nullptr : of.sine + of.table_row(token);
#pragma GCC ivdep
    for (std::int64_t pair = groups.lane; pair < half; pair += Groups::lanes) {
      const std::int64_t first = Interleaved ? 2 * pair : pair;
      const std::int64_t second = Interleaved ? 2 * pair + 1 : pair + half;
      A a = static_cast<A>(x[first]) * (inverse * static_cast<A>(weight[first]));
      A b = static_cast<A>(x[second]) * (inverse * static_cast<A>(weight[second]));
      if (cosines != nullptr) impl::turn(a, b, cosines[pair], sines[pair]);
      y[first] = static_cast<T>(a);
      y[second] = static_cast<T>(b);
    }
  }
};

}  // namespace

template <class Space, class T>
void head_norm_forward(Stream<Space>& stream, const ProjectedHeads& heads, const T* projected,
                       Vector<const T, Space> query_weight, Vector<const T, Space> key_weight,
                       RopeStyle style, Matrix<const Accumulator<T>, Space> cosine,
                       Matrix<const Accumulator<T>, Space> sine, Matrix<T, Space> result, double epsilon) {
  const auto of =
      impl::head_operands<T, Space>(heads, projected, query_weight, key_weight, style, cosine, sine, epsilon);
  const std::int64_t width = of.all_heads() * heads.head_dim;
  impl::require_shape(impl::is_matrix(result, heads.tokens, width),
                      "head_norm_forward: the result must be [tokens, (query_heads + key_heads) * head_dim]");
  const std::int64_t span = heads.tokens == 0 ? 0 : (heads.tokens - 1) * heads.row_stride + width;
  const auto queue = [&](std::int64_t league, const auto& functor) {
    launch(stream, "head_norm/forward",
           {backend::read(projected, span), backend::read(query_weight), backend::read(key_weight),
            backend::read(cosine), backend::read(sine), backend::write(result)},
           backend::Teams<impl::head_threads>{league}, functor);
  };
  const bool done = impl::with_head_lanes<Space, T>(
      of,
      [&](auto lanes, auto packet) {
        constexpr int groups = impl::head_threads / lanes;
        queue(impl::rounded_up_quotient(heads.tokens * of.all_heads(), groups),
              RegisterHeadForward<lanes, packet, T>{of, result.data()});
      },
      result.data());
  if (!done) queue(heads.tokens, GeneralHeadForward<T>{of, result.data()});
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                   \
  template void head_norm_forward<SPACE, T>(Stream<SPACE>&, const ProjectedHeads&, const T*,           \
                                            Vector<const T, SPACE>, Vector<const T, SPACE>, RopeStyle, \
                                            Matrix<const Accumulator<T>, SPACE>,                       \
                                            Matrix<const Accumulator<T>, SPACE>, Matrix<T, SPACE>, double);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
