// SPDX-License-Identifier: Apache-2.0
#include "column_sum.hpp"
#include "head_operands.hpp"

namespace encore::kernels {

namespace {

using impl::HeadOperands;
using impl::HeadPart;
using impl::LaneGroups;

/// What both kernels below work on. A team takes one share of the tokens, and of those first the queries and then the
/// keys; it leaves its sums for the weights' gradients in a row of each of the partials.
template <class T>
struct Operands {
  HeadOperands<T> of;
  T* gradient;
  Accumulator<T>* query_partials;
  Accumulator<T>* key_partials;
  std::int64_t shares;

  KOKKOS_FUNCTION std::int64_t first_token(std::int64_t share) const {
    return of.heads.tokens * share / shares;
  }
  KOKKOS_FUNCTION std::int64_t at(std::int64_t token, std::int64_t head) const {
    return token * of.heads.row_stride + head * of.heads.head_dim;
  }
};

/// With y = n * weight, n = x * inverse, and g the gradient of y: that of the weight is the sum of g * n, that of x is
/// inverse * (g * weight - n * mean(g * weight * n)).
template <int Lanes, int Width, class T>
struct RegisterHeadBackward {
  using A = Accumulator<T>;
  Operands<T> operands;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const ProjectedHeads& heads = operands.of.heads;
    do_heads(team, 0, heads.query_heads, operands.query_partials);
    do_heads(team, heads.query_heads, heads.key_heads, operands.key_partials);
  }

 private:
  template <class Team>
  KOKKOS_FUNCTION void do_heads(const Team& team, std::int64_t first_head, std::int64_t count,
                                A* partials) const {
    using Groups = LaneGroups<Lanes, Team>;
    const Groups groups(team);
    const HeadOperands<T>& of = operands.of;
    const std::int64_t half = of.half(), head_dim = of.heads.head_dim;
    const std::int64_t begin = operands.first_token(team.league_rank());
    const std::int64_t end = operands.first_token(team.league_rank() + 1);
    const int lane = groups.lane;
    const bool active = static_cast<std::int64_t>(lane) * Width < half;
    HeadPart<Width, A> weight, sums;
    weight.load(of.weight(first_head), half, lane, active);
    for (int i = 0; i < Width; ++i) sums.first[i] = sums.second[i] = A(0);
    for (std::int64_t item = groups.group; item < (end - begin) * count; item += Groups::groups) {
      const std::int64_t row = impl::quotient(item, count);
      const std::int64_t token = begin + row, place = operands.at(token, first_head + item - row * count);
      HeadPart<Width, A> x, g;
      x.load(of.projected + place, half, lane, active);
      g.load(operands.gradient + place, half, lane, active);
      if (active) g.rotate(of, token, lane, A(-1));
      A squares(0), projection(0);
      for (int i = 0; i < Width; ++i) {
        squares += x.first[i] * x.first[i] + x.second[i] * x.second[i];
        projection +=
            g.first[i] * weight.first[i] * x.first[i] + g.second[i] * weight.second[i] * x.second[i];
      }
      const A inverse = of.inverse_rms(groups.sum(squares));
      const A mean = groups.sum(projection) * inverse / static_cast<A>(head_dim);
      if (!active) continue;
      const auto finish = [&](A& value, A gradient, A factor, A& sum) {
        const A n = value * inverse;
        sum += gradient * n;
        value = inverse * (gradient * factor - n * mean);
      };
      for (int i = 0; i < Width; ++i) {
        finish(x.first[i], g.first[i], weight.first[i], sums.first[i]);
        finish(x.second[i], g.second[i], weight.second[i], sums.second[i]);
      }
      x.store(operands.gradient + place, half, lane);
    }
    A* scratch = team.template scratch<A>();  // [groups, head_dim]
    team.barrier();
    if (active)
      for (int i = 0; i < Width; ++i) {
        scratch[groups.group * head_dim + lane * Width + i] = sums.first[i];
        scratch[groups.group * head_dim + half + lane * Width + i] = sums.second[i];
      }
    team.barrier();
    team.for_each(head_dim, [&](std::int64_t d) {
      A total(0);
      for (int group = 0; group < Groups::groups; ++group) total += scratch[group * head_dim + d];
      partials[team.league_rank() * head_dim + d] = total;
    });
  }
};

/// Heads of any size. Each group of lanes keeps its sums in scratch memory.
template <class T>
struct GeneralHeadBackward {
  using A = Accumulator<T>;
  Operands<T> operands;

  template <class Team>
  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const ProjectedHeads& heads = operands.of.heads;
    do_heads(team, 0, heads.query_heads, operands.query_partials);
    do_heads(team, heads.query_heads, heads.key_heads, operands.key_partials);
  }

 private:
  template <class Team>
  KOKKOS_FUNCTION void do_heads(const Team& team, std::int64_t first_head, std::int64_t count,
                                A* partials) const {
    using Groups = LaneGroups<32, Team>;
    const Groups groups(team);
    const std::int64_t head_dim = operands.of.heads.head_dim;
    const std::int64_t begin = operands.first_token(team.league_rank());
    const std::int64_t end = operands.first_token(team.league_rank() + 1);
    A* scratch = team.template scratch<A>();  // [groups, head_dim]
    team.barrier();
    team.for_each(Groups::groups * head_dim, [&](std::int64_t i) { scratch[i] = 0; });
    team.barrier();
    for (std::int64_t item = groups.group; item < (end - begin) * count; item += Groups::groups) {
      const std::int64_t row = impl::quotient(item, count), head = first_head + item - row * count;
      A* sums = scratch + groups.group * head_dim;
      if (operands.of.interleaved)
        do_head<true>(groups, begin + row, head, sums);
      else
        do_head<false>(groups, begin + row, head, sums);
    }
    team.barrier();
    team.for_each(head_dim, [&](std::int64_t d) {
      A total(0);
      for (int group = 0; group < Groups::groups; ++group) total += scratch[group * head_dim + d];
      partials[team.league_rank() * head_dim + d] = total;
    });
  }

  template <bool Interleaved, class Groups>
  KOKKOS_FUNCTION void do_head(const Groups& groups, std::int64_t token, std::int64_t head, A* sums) const {
    const HeadOperands<T>& of = operands.of;
    const std::int64_t half = of.half(), head_dim = of.heads.head_dim;
    const T* x = of.projected + operands.at(token, head);
    T* gradient = operands.gradient + operands.at(token, head);
    const T* weight = of.weight(head);
    const A* cosines = of.cosine == nullptr ? nullptr : of.cosine + of.table_row(token);
    const A* sines = of.cosine == nullptr ? nullptr : of.sine + of.table_row(token);
    const auto turned_back = [=](std::int64_t pair, A& a, A& b) {
      a = static_cast<A>(gradient[Interleaved ? 2 * pair : pair]);
      b = static_cast<A>(gradient[Interleaved ? 2 * pair + 1 : pair + half]);
      if (cosines != nullptr) impl::turn(a, b, cosines[pair], -sines[pair]);
    };
    A squares(0), projection(0);
#pragma omp simd reduction(+ : squares, projection)
    for (std::int64_t pair = groups.lane; pair < half; pair += Groups::lanes) {
      const std::int64_t first = Interleaved ? 2 * pair : pair;
      const std::int64_t second = Interleaved ? 2 * pair + 1 : pair + half;
      const A p = static_cast<A>(x[first]), q = static_cast<A>(x[second]);
      A a, b;
      turned_back(pair, a, b);
      squares += p * p + q * q;
      projection += a * static_cast<A>(weight[first]) * p + b * static_cast<A>(weight[second]) * q;
    }
    const A inverse = of.inverse_rms(groups.sum(squares));
    const A mean = groups.sum(projection) * inverse / static_cast<A>(head_dim);
#pragma GCC ivdep
    for (std::int64_t pair = groups.lane; pair < half; pair += Groups::lanes) {
      const std::int64_t first = Interleaved ? 2 * pair : pair;
      const std::int64_t second = Interleaved ? 2 * pair + 1 : pair + half;
      const A p = static_cast<A>(x[first]) * inverse, q = static_cast<A>(x[second]) * inverse;
      A a, b;
      turned_back(pair, a, b);
      sums[first] += a * p;
      sums[second] += b * q;
      gradient[first] = static_cast<T>(inverse * (a * static_cast<A>(weight[first]) - p * mean));
      gradient[second] = static_cast<T>(inverse * (b * static_cast<A>(weight[second]) - q * mean));
    }
  }
};

/// As the rows of normalization: on hosts a share has at least 8 tokens.
template <class Space>
std::int64_t shares_of(std::int64_t tokens) {
  const std::int64_t most = head_norm_workspace_rows(tokens) / 2;
  if constexpr (!backend::is_host_space<Space>) return most;
  const std::int64_t shares = tokens / 8 < 256 ? tokens / 8 : 256;
  return shares < 1 ? 1 : shares < most ? shares : most;
}

}  // namespace

std::int64_t head_norm_workspace_rows(std::int64_t tokens) {
  constexpr std::int64_t most = 6 * 132;  // Whole waves of teams on a GPU with 132 multiprocessors.
  const std::int64_t shares = impl::rounded_up_quotient(tokens, 2);
  return 2 * (shares < 1 ? 1 : shares > most ? most : shares);
}

template <class Space, class T, class G>
void head_norm_backward(Stream<Space>& stream, const ProjectedHeads& heads, const T* projected,
                        Vector<const T, Space> query_weight, Vector<const T, Space> key_weight,
                        RopeStyle style, Matrix<const Accumulator<T>, Space> cosine,
                        Matrix<const Accumulator<T>, Space> sine, T* gradient,
                        Vector<G, Space> query_weight_gradient, Vector<G, Space> key_weight_gradient,
                        Matrix<Accumulator<T>, Space> workspace, double epsilon, bool accumulate) {
  using A = Accumulator<T>;
  const auto of =
      impl::head_operands<T, Space>(heads, projected, query_weight, key_weight, style, cosine, sine, epsilon);
  const std::int64_t head_dim = heads.head_dim;
  impl::require_shape(impl::is_vector(query_weight_gradient, head_dim) &&
                          impl::is_vector(key_weight_gradient, head_dim) &&
                          impl::has_rows(workspace, head_norm_workspace_rows(heads.tokens), head_dim),
                      "head_norm_backward: the weights' gradients must be [head_dim] and the workspace "
                      "[head_norm_workspace_rows(tokens), head_dim]");
  const std::int64_t shares = shares_of<Space>(heads.tokens);
  A* partials = workspace.data();
  const Operands<T> operands{of, gradient, partials, partials + shares * head_dim, shares};
  const std::int64_t span =
      heads.tokens == 0 ? 0 : (heads.tokens - 1) * heads.row_stride + of.all_heads() * head_dim;
  const auto queue = [&](std::int64_t groups, const auto& functor) {
    launch(
        stream, "head_norm/backward",
        {backend::read(projected, span), backend::read(query_weight), backend::read(key_weight),
         backend::read(cosine), backend::read(sine), backend::write(gradient, span),
         backend::write(partials, 2 * shares * head_dim)},
        backend::Teams<impl::head_threads>{shares, static_cast<std::size_t>(groups * head_dim) * sizeof(A)},
        functor);
  };
  const bool done = impl::with_head_lanes<Space, T>(
      of,
      [&](auto lanes, auto packet) {
        queue(impl::head_threads / lanes, RegisterHeadBackward<lanes, packet, T>{operands});
      },
      static_cast<const T*>(gradient));
  if (!done)
    queue(backend::is_host_space<Space> ? 1 : impl::head_threads / 32, GeneralHeadBackward<T>{operands});
  impl::column_sum<Space, A, G>(stream, "head_norm/backward/sum", shares, head_dim, accumulate,
                                {operands.query_partials, query_weight_gradient.data()},
                                {operands.key_partials, key_weight_gradient.data()});
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                \
  template void head_norm_backward<SPACE, T, G>(                                                       \
      Stream<SPACE>&, const ProjectedHeads&, const T*, Vector<const T, SPACE>, Vector<const T, SPACE>, \
      RopeStyle, Matrix<const Accumulator<T>, SPACE>, Matrix<const Accumulator<T>, SPACE>, T*,         \
      Vector<G, SPACE>, Vector<G, SPACE>, Matrix<Accumulator<T>, SPACE>, double, bool);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::kernels
